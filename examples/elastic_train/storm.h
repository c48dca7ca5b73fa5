// The storm: runs `weft launch` of this program with two to four workers. During the training it kills,
// stops, adds and removes workers, at random by a seed.
#pragma once

#include "elastic_train/settings.h"

// Shows the training as it proceeds. Returns the launcher's status.
int run_storm(int argc, char** argv, const Settings& settings);
