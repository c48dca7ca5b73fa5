// The learning rate, the results of a run, and the pictures and files that show them.
#pragma once

#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/layer_graph.h>

#include <string>
#include <vector>

#include "fashion_mnist/loss_curve.h"
#include "gpt/settings.h"
#include "gpt/text.h"

// Up to the highest rate in a twentieth of the steps, then down along a cosine to a tenth of it.
double rate_at(std::int64_t step, const Settings& settings);

// What `weft plan` needs: the costs of the layers for one micro-batch, and as FILE.kept the bytes that they
// keep.
void write_profile(const weft::pipeline::LayerGraph& layers, const Settings& settings);

// In seconds, without the first step.
double median_step(const std::vector<Point>& points);

// The mean cross entropy of the held-out text. All ranks call it.
double held_out_loss(weft::pipeline::GroupPipeline& model, const weft::collectives::DeviceMesh& mesh,
                     const Text& text, const Settings& settings);

// Text that the model writes after the beginning of the held-out text. All ranks call it.
std::string sample(weft::pipeline::GroupPipeline& model, const weft::collectives::DeviceMesh& mesh,
                   const Text& text, const Settings& settings);

std::string title_of(const Settings& settings);

// The step as measured, and as predicted from the measured costs of the stages.
void draw(const weft::schedule::Schedule& schedule, const weft::schedule::Timeline& measured,
          const Settings& settings);
