#include "fsdp/mesh_values.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "comm/mesh_state.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

template <class T>
void fold_over_ranks(const Mesh& mesh, std::span<T> values, DType dtype, ReduceOp op,
                     std::string_view label) {
  const CollectivePart part{.send = values.data(),
                            .recv = values.data(),
                            .numel = static_cast<int64_t>(values.size()),
                            .dtype = dtype};
  mesh.state().control_communicator().all_reduce(
      {&part, 1}, op, mesh.state().next_control_tag(Operation::kAllReduce, part.numel, label),
      cpu_device().compute_stream());
}

template <class T>
std::vector<T> gather_over_ranks(const Mesh& mesh, std::span<const T> values, DType dtype,
                                 std::string_view label) {
  std::vector<T> gathered(values.size() * mesh.world_size());
  const CollectivePart part{.send = values.data(),
                            .recv = gathered.data(),
                            .numel = static_cast<int64_t>(values.size()),
                            .dtype = dtype};
  mesh.state().control_communicator().all_gather(
      {&part, 1}, mesh.state().next_control_tag(Operation::kAllGather, part.numel, label),
      cpu_device().compute_stream());
  return gathered;
}

}  // namespace

void mesh_detail::refuse_elements(int64_t numel, std::string_view label) {
  throw InvalidArgument(
      {.what = fmt::format("a tensor of {} elements as a value over ranks", numel),
       .where = fmt::format("'{}'", label),
       .hint =
           "one element: loss.mean(), or a tensor each in a std::array; Mesh::gather takes what "
           "lies in memory"});
}

void mesh_detail::refuse_beyond_int64(uint64_t value, std::string_view label) {
  throw InvalidArgument({.what = fmt::format("{} as a value over ranks", value),
                         .where = fmt::format("'{}'", label),
                         .hint = "whole numbers are at most 9223372036854775807; give a double"});
}

void Mesh::fold(std::span<double> values, Fold how, std::string_view label) const {
  fold_over_ranks(*this, values, DType::kFloat64,
                  how == Fold::kSum ? ReduceOp::kSum : ReduceOp::kMax, label);
}

void Mesh::fold(std::span<int64_t> values, Fold how, std::string_view label) const {
  fold_over_ranks(*this, values, DType::kInt64, how == Fold::kSum ? ReduceOp::kSum : ReduceOp::kMax,
                  label);
}

std::vector<float> Mesh::gather(std::span<const float> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kFloat32, label);
}

std::vector<double> Mesh::gather(std::span<const double> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kFloat64, label);
}

std::vector<int64_t> Mesh::gather(std::span<const int64_t> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kInt64, label);
}

}  // namespace fsdp
