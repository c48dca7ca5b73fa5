// Functions that all forms of this training use.
#pragma once

#include <torch/torch.h>
#include <weft/parallel/collectives/group.h>

#include <vector>

#include "ddp_train/resnet.h"
#include "ddp_train/settings.h"
#include "fashion_mnist/images.h"
#include "fashion_mnist/loss_curve.h"

// The learning rate. It rises to the highest rate in the first tenth of the steps, then falls along a cosine.
// done: the part of the steps that is done, from 0 to 1.
double rate_at(double done, double highest);
// Rank 0 writes the loss curve of all ranks.
void report(const weft::collectives::Group& group, const std::vector<Point>& points,
            const Settings& settings);
