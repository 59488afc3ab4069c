#include "fsdp/rank_values.h"

#include "comm/mesh_state.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

template <class T>
T reduce(const Mesh& mesh, T value, DType dtype, ReduceOp op, std::string_view label) {
  Stream& stream = cpu_device().compute_stream();
  const CollectivePart part{.send = &value, .recv = &value, .numel = 1, .dtype = dtype};
  mesh.state().control_communicator().all_reduce({&part, 1}, op, {.sequence = 0, .label = label},
                                                 stream);
  return value;
}

}  // namespace

double sum_over_ranks(const Mesh& mesh, double value, std::string_view label) {
  return reduce(mesh, value, DType::kFloat64, ReduceOp::kSum, label);
}

double mean_over_ranks(const Mesh& mesh, double value, std::string_view label) {
  return sum_over_ranks(mesh, value, label) / mesh.world_size();
}

double max_over_ranks(const Mesh& mesh, double value, std::string_view label) {
  return reduce(mesh, value, DType::kFloat64, ReduceOp::kMax, label);
}

int64_t max_over_ranks(const Mesh& mesh, int64_t value, std::string_view label) {
  return reduce(mesh, value, DType::kInt64, ReduceOp::kMax, label);
}

std::vector<float> gather_from_ranks(const Mesh& mesh, std::span<const float> values,
                                     std::string_view label) {
  Stream& stream = cpu_device().compute_stream();
  std::vector<float> gathered(values.size() * mesh.world_size());
  const CollectivePart part{.send = values.data(),
                            .recv = gathered.data(),
                            .numel = static_cast<int64_t>(values.size()),
                            .dtype = DType::kFloat32};
  mesh.state().control_communicator().all_gather({&part, 1}, {.sequence = 0, .label = label},
                                                 stream);
  return gathered;
}

}  // namespace fsdp
