#include "hosts/host_sums.h"

#include <cstring>
#include <memory>
#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "runtime/buffer.h"
#include "runtime/dtype.h"
#include "support/forwarding_communicator.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {
namespace {

at::Tensor combine(const at::Tensor& one, const at::Tensor& other, ReduceOp op) {
  return op == ReduceOp::kMax ? at::maximum(one, other) : one + other;
}

// A communicator of ranks of several hosts. It gathers the inputs of all ranks, and reduces them on
// each rank by LibTorch's operators.
class HostSums final : public ForwardingCommunicator {
 public:
  // `hosts` has the host of each rank of the communicator.
  HostSums(std::unique_ptr<Communicator> inner, std::vector<int> hosts)
      : ForwardingCommunicator(std::move(inner)), hosts_(std::move(hosts)) {}

  void issue(const Collective& collective, Stream& stream) override {
    if (!traits_of(collective.operation).reduces) {
      return ForwardingCommunicator::issue(collective, stream);
    }
    for (const CollectivePart& part : collective.parts) reduce(collective, part, stream);
  }

 private:
  void reduce(const Collective& collective, const CollectivePart& part, Stream& stream) {
    stream.synchronize();  // the input is complete
    const int64_t numel = part.numel * collective.pieces_sent(size());
    const int64_t bytes = numel * size_of(part.dtype);
    const Buffer all = allocate_host(size() * bytes + 1);
    copy_input(part, numel, all.at(rank() * bytes));
    const CollectivePart gathered{all.at(rank() * bytes), all.data(), numel, part.dtype};
    ForwardingCommunicator::issue({Operation::kAllGather, {&gathered, 1}, collective.tag}, stream);
    stream.synchronize();
    const at::Tensor inputs =
        at::from_blob(all.data(), {size(), numel}, scalar_type_of(part.dtype));
    const bool has_pieces = traits_of(collective.operation).sends_to_each;
    const int64_t begin = has_pieces ? rank() * part.numel : 0;
    const at::Tensor result =
        reduced(inputs.slice(1, begin, begin + part.numel), collective.reduce_op);
    std::memcpy(part.recv, result.const_data_ptr(), part.numel * size_of(part.dtype));
  }

  static void copy_input(const CollectivePart& part, int64_t numel, std::byte* to) {
    const SendRun whole{part.send, numel};
    for (const SendRun& run : part.runs.empty() ? std::span(&whole, 1) : part.runs) {
      std::memcpy(to, run.data, run.numel * size_of(part.dtype));
      to += run.numel * size_of(part.dtype);
    }
  }

  // Types narrower than fp32 are summed in fp32. The sum of a host and the result are rounded.
  at::Tensor reduced(const at::Tensor& inputs, ReduceOp op) const {
    const at::ScalarType type = inputs.scalar_type();
    const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
    at::Tensor result;
    for (int first = 0; first < size();) {
      at::Tensor of_host = inputs[first].to(wide);
      int next = first + 1;
      for (; next < size() && hosts_[next] == hosts_[first]; ++next) {
        of_host = combine(of_host, inputs[next].to(wide), op);
      }
      of_host = of_host.to(type).to(wide);
      result = first == 0 ? of_host : combine(result, of_host, op);
      first = next;
    }
    if (op == ReduceOp::kAvg) result = result / size();
    return result.to(type).contiguous();
  }

  const std::vector<int> hosts_;
};

}  // namespace

std::vector<WatchedRank> ranks_with_host_sums(int world, int hosts, const MeshOptions& options) {
  std::vector<WatchedRank> ranks;
  for (MeshParts& parts : local_mesh(world, options)) {
    const int rank = parts.control_plane->rank();
    const auto wrap = [&](AxisCommunicators& communicators, Axis axis) {
      if (communicators.reduce == nullptr) return;
      std::vector<int> hosts_of_ranks = parts.shape.ranks(axis, rank);
      for (int& each : hosts_of_ranks) each /= world / hosts;
      if (hosts_of_ranks.front() == hosts_of_ranks.back()) return;  // one host
      communicators.reduce =
          std::make_unique<HostSums>(std::move(communicators.reduce), std::move(hosts_of_ranks));
    };
    wrap(parts.world, Axis::kWorld);
    wrap(parts.shard, Axis::kShard);
    wrap(parts.replicate, Axis::kReplicate);
    ranks.push_back({nullptr, mesh_of(std::move(parts))});
  }
  return ranks;
}

}  // namespace fsdp::testing
