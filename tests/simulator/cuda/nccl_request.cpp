// Computes the data that an NCCL request sends and receives.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/reduce.h"
#include "runtime/device.h"
#include "simulator/cuda/nccl_world.h"

namespace fsdp::testing::sim {
namespace {

DType dtype_of(nccl::DataType type) {
  switch (type) {
    case nccl::DataType::kFloat32:
      return DType::kFloat32;
    case nccl::DataType::kBFloat16:
      return DType::kBFloat16;
    case nccl::DataType::kFloat16:
      return DType::kFloat16;
    case nccl::DataType::kFloat64:
      return DType::kFloat64;
    case nccl::DataType::kInt64:
      return DType::kInt64;
    case nccl::DataType::kInt32:
      return DType::kInt32;
    case nccl::DataType::kUInt8:
      return DType::kUInt8;
  }
  throw Misuse("a type that NCCL has not");
}

}  // namespace

std::vector<std::byte> received(const NcclCollective& collective, size_t request, int rank,
                                int size) {
  const auto sent_by = [&](int peer) -> const std::vector<std::byte>& {
    return collective.posts[static_cast<size_t>(peer)]->sent[request];
  };
  const NcclRequest& mine = collective.posts[static_cast<size_t>(rank)]->requests[request];
  if (mine.kind == fsdp::Operation::kBroadcast) return sent_by(mine.root);
  std::vector<std::byte> result(static_cast<size_t>(mine.bytes_received(size)));
  if (mine.kind == fsdp::Operation::kAllGather) {
    auto to = result.begin();
    for (int peer = 0; peer < size; ++peer) to = std::ranges::copy(sent_by(peer), to).out;
    return result;
  }
  const bool scatters = mine.kind == fsdp::Operation::kReduceScatter;
  const size_t begin = scatters ? static_cast<size_t>(rank) * result.size() : 0;
  // NCCL does not define the order of a sum. Rank order makes the result reproducible.
  std::vector<const void*> sources;
  for (int peer = 0; peer < size; ++peer) sources.push_back(sent_by(peer).data() + begin);
  const kernels::ReduceRun run{
      .sources = sources, .out = result.data(), .numel = mine.count, .dtype = dtype_of(mine.type)};
  kernels::reduce(cpu_device().compute_stream(), {&run, 1},
                  mine.op == nccl::RedOp::kMax ? ReduceOp::kMax : ReduceOp::kSum);
  return result;
}

std::string NcclRequest::text() const {
  return fmt::format("{} of {} of type {} (op {}, root {}){}", name_of(kind), count,
                     static_cast<int>(type), static_cast<int>(op), root, place);
}

int64_t NcclRequest::bytes_sent(int size) const {
  const int pieces = kind == fsdp::Operation::kReduceScatter ? size : 1;
  return count * pieces * size_of(dtype_of(type));
}

int64_t NcclRequest::bytes_received(int size) const {
  const int pieces = kind == fsdp::Operation::kAllGather ? size : 1;
  return count * pieces * size_of(dtype_of(type));
}

}  // namespace fsdp::testing::sim
