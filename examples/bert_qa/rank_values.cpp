#include "rank_values.h"

#include "runtime/stream.h"

namespace bert_qa {
namespace {

template <class T>
T reduce(const fsdp::Mesh& mesh, T value, fsdp::DType dtype, fsdp::ReduceOp op,
         std::string_view label) {
  const auto stream = fsdp::make_cpu_stream(fsdp::CpuStreams::kInline, "values");
  const fsdp::CollectivePart part{.send = &value, .recv = &value, .numel = 1, .dtype = dtype};
  mesh.control_communicator().all_reduce({&part, 1}, op, {.sequence = 0, .label = label}, *stream);
  return value;
}

}  // namespace

double sum_over_ranks(const fsdp::Mesh& mesh, double value, std::string_view label) {
  return reduce(mesh, value, fsdp::DType::kFloat64, fsdp::ReduceOp::kSum, label);
}

int64_t max_over_ranks(const fsdp::Mesh& mesh, int64_t value, std::string_view label) {
  return reduce(mesh, value, fsdp::DType::kInt64, fsdp::ReduceOp::kMax, label);
}

std::vector<float> gather_from_ranks(const fsdp::Mesh& mesh, std::span<const float> values,
                                     std::string_view label) {
  const auto stream = fsdp::make_cpu_stream(fsdp::CpuStreams::kInline, "values");
  std::vector<float> gathered(values.size() * mesh.world_size());
  const fsdp::CollectivePart part{.send = values.data(),
                                  .recv = gathered.data(),
                                  .numel = static_cast<int64_t>(values.size()),
                                  .dtype = fsdp::DType::kFloat32};
  mesh.control_communicator().all_gather({&part, 1}, {.sequence = 0, .label = label}, *stream);
  return gathered;
}

}  // namespace bert_qa
