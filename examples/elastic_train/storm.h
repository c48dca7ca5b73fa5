// The storm: `weft launch` of this program with two to four workers, of which a worker is killed, stopped,
// added or removed in the course of the training, by a seed.
#pragma once

#include "elastic_train/settings.h"

// Shows the training as it proceeds. Returns the launcher's status.
int run_storm(int argc, char** argv, const Settings& settings);
