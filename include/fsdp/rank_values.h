// Small values that ranks tell each other beside the engine's own traffic: losses, counts, peaks.
//
//   const double loss = fsdp::mean_over_ranks(mesh, local_loss.item<double>());
//
// All are collective: every rank calls them in the same order with the same `label`, outside
// forward and backward; they return when every rank has. The label names the value in errors and
// traces.
// Errors: CommError as any collective (communicator.h).
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fsdp {

// Formed in rank order, so all ranks get the same bits.
double sum_over_ranks(const Mesh& mesh, double value, std::string_view label = "sum");
// The sum divided by the number of ranks.
double mean_over_ranks(const Mesh& mesh, double value, std::string_view label = "mean");
// NaN if any rank's is.
double max_over_ranks(const Mesh& mesh, double value, std::string_view label = "maximum");
int64_t max_over_ranks(const Mesh& mesh, int64_t value, std::string_view label = "maximum");

// Every rank's `values`, in rank order. Requires: equally many on every rank.
std::vector<float> gather_from_ranks(const Mesh& mesh, std::span<const float> values,
                                     std::string_view label = "values");

}  // namespace fsdp
