// The results of a run, and the pictures and files that show them.
#pragma once

#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/layer_graph.h>

#include <string>
#include <vector>

#include "fashion_mnist/loss_curve.h"
#include "gpt/settings.h"
#include "gpt/text.h"

// Writes the input of `weft plan`: the costs of the layers for one micro-batch, and in FILE.kept the bytes
// that the layers keep for backward.
void write_profile(const weft::pipeline::LayerGraph& layers, const Settings& settings);

// The median duration of a step in seconds, without the first step.
double median_step(const std::vector<Point>& points);

// The mean cross entropy of the held-out text. All ranks call it.
double held_out_loss(weft::pipeline::GroupPipeline& model, const weft::collectives::DeviceMesh& mesh,
                     const Text& text, const Settings& settings);

// Generates text with the model, as a continuation of the beginning of the held-out text. All ranks call it.
std::string sample(weft::pipeline::GroupPipeline& model, const weft::collectives::DeviceMesh& mesh,
                   const Text& text, const Settings& settings);

std::string title_of(const Settings& settings);

// Draws the last step as measured, and as predicted from the measured costs of the stages.
void draw(const weft::schedule::Schedule& schedule, const weft::schedule::Timeline& measured,
          const Settings& settings);
