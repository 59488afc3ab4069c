// Small values that ranks tell each other beside the engine's own traffic. All are collective.
#pragma once

#include <fsdp/mesh.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace bert_qa {

double sum_over_ranks(const fsdp::Mesh& mesh, double value, std::string_view label);
int64_t max_over_ranks(const fsdp::Mesh& mesh, int64_t value, std::string_view label);

// Every rank's `values`, in rank order. Requires: equally many on every rank.
std::vector<float> gather_from_ranks(const fsdp::Mesh& mesh, std::span<const float> values,
                                     std::string_view label);

}  // namespace bert_qa
