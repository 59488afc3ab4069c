#include "comm/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/collective_checks.h"
#include "fsdp/error.h"
#include "kernels/reduce.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

nccl::DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return nccl::DataType::kFloat32;
    case DType::kBFloat16:
      return nccl::DataType::kBFloat16;
    case DType::kFloat16:
      return nccl::DataType::kFloat16;
    case DType::kFloat64:
      return nccl::DataType::kFloat64;
    case DType::kInt64:
      return nccl::DataType::kInt64;
    case DType::kInt32:
      return nccl::DataType::kInt32;
    case DType::kUInt8:
      return nccl::DataType::kUInt8;
  }
  return nccl::DataType::kUInt8;
}

size_t count_of(const CollectivePart& part) { return static_cast<size_t>(part.numel); }

// Returns the address of a part's input. The input is contiguous, because require_possible has
// checked it.
const void* sent(const CollectivePart& part) {
  return part.runs.empty() ? part.send : part.runs.front().data;
}

// Checks the arguments of a collective. Also checks that NCCL supports what the collective asks for
// (capabilities()).
void require_possible(const Collective& collective, int size) {
  require_valid(collective, size);
  const auto where = [&] { return describe(make_record(collective)); };
  for (const CollectivePart& part : collective.parts) {
    if (part.runs.size() <= 1) continue;
    throw InvalidArgument(
        {.what = fmt::format("the send buffer has {} runs, NCCL accepts 1", part.runs.size()),
         .where = where(),
         .hint = "check Capabilities::takes_runs before sending runs"});
  }
  if (collective.reduce_op != ReduceOp::kAvg) return;
  throw InvalidArgument({.what = "the NCCL communicator does not average (kAvg)",
                         .where = where(),
                         .hint = "scale the values and use kSum: see Capabilities::averages"});
}

// Makes NCCL's call for one part. Averages and maxima never reach this function.
nccl::Result issue_part(const nccl::Library& library, const Collective& collective,
                        const CollectivePart& part, nccl::Comm* comm, void* stream) {
  const void* const send = sent(part);
  const size_t count = count_of(part);
  const nccl::DataType type = type_of(part.dtype);
  switch (collective.operation) {
    case Operation::kAllGather:
      return library.all_gather(send, part.recv, count, type, comm, stream);
    case Operation::kReduceScatter:
      return library.reduce_scatter(send, part.recv, count, type, nccl::RedOp::kSum, comm, stream);
    case Operation::kAllReduce:
      return library.all_reduce(send, part.recv, count, type, nccl::RedOp::kSum, comm, stream);
    case Operation::kBroadcast:
      return library.broadcast(send, part.recv, count, type, collective.root, comm, stream);
    case Operation::kBarrier:
      break;
  }
  return nccl::Result::kSuccess;
}

// Makes a communicator and runs a first collective on it, so that no later collective waits for
// connections.
std::unique_ptr<NcclCommunicator> make_warm(
    const std::shared_ptr<NcclSession>& session, NcclSession::MemberPtr member,
    std::vector<int> ranks, int rank,
    NcclCommunicator::Memory memory = NcclCommunicator::Memory::kPlain) {
  auto made = std::make_unique<NcclCommunicator>(session, std::move(member), std::move(ranks), rank,
                                                 memory);
  Stream& stream = session->own_stream();
  made->barrier({.label = "warm-up"}, stream);
  stream.synchronize();
  return made;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclSession> session,
                                   NcclSession::MemberPtr member, std::vector<int> ranks, int rank,
                                   Memory memory)
    : session_(std::move(session)),
      member_(std::move(member)),
      ranks_(std::move(ranks)),
      rank_(rank),
      windows_(memory == Memory::kWindows
                   ? std::optional<NcclWindows>(std::in_place, session_, member_)
                   : std::nullopt),
      scratch_used_(session_->device()) {}

// Kernels may still use the scratch memory, so it is freed only after the device has drained.
NcclCommunicator::~NcclCommunicator() {
  // After this call NCCL launches no more work of this communicator.
  session_->leave(member_);
  if (scratch_) session_->device().drain();
}

Buffer NcclCommunicator::allocate(int64_t bytes) {
  if (windows_) return windows_->allocate(bytes);
  return session_->device().allocate(bytes, MemoryKind::kDevice);
}

std::byte* NcclCommunicator::scratch(int64_t bytes, Stream& stream) {
  stream.wait(scratch_used_);  // the last use may be on another stream
  if (!scratch_ || scratch_->bytes() < bytes) {
    // The stream has just waited for the last use of the old scratch memory. So the stream may free
    // this memory when the work that is now on the stream is done.
    if (scratch_) stream.hold(scratch_);
    scratch_ = std::make_shared<Buffer>(session_->device().allocate(bytes, MemoryKind::kDevice));
  }
  return scratch_->at(0);
}

void NcclCommunicator::issue(const Collective& collective, Stream& stream) {
  require_possible(collective, size());
  if (collective.operation == Operation::kBarrier) return meet(collective, stream);
  if (collective.reduce_op == ReduceOp::kMax) return maximum(collective, stream);
  session_->issue(*member_, make_record(collective), stream,
                  [&](const nccl::Library& library, nccl::Comm* comm, void* native) {
                    for (const CollectivePart& part : collective.parts) {
                      if (part.numel == 0) continue;
                      const nccl::Result result =
                          issue_part(library, collective, part, comm, native);
                      if (result != nccl::Result::kSuccess) return result;
                    }
                    return nccl::Result::kSuccess;
                  });
}

// Passes a barrier. NCCL has no barrier, so the ranks all_reduce one word, whose value does not
// matter.
void NcclCommunicator::meet(const Collective& collective, Stream& stream) {
  auto* const word = reinterpret_cast<int32_t*>(scratch(sizeof(int32_t), stream));
  session_->issue(*member_, make_record(collective), stream,
                  [&](const nccl::Library& library, nccl::Comm* comm, void* native) {
                    return library.all_reduce(word, word, 1, nccl::DataType::kInt32,
                                              nccl::RedOp::kSum, comm, native);
                  });
  stream.record(scratch_used_);
}

// Forms maxima. Every rank gathers the whole input of all ranks and reduces it by a kernel. For a
// reduce_scatter it reduces only its own piece.
void NcclCommunicator::maximum(const Collective& collective, Stream& stream) {
  const std::span<const CollectivePart> parts = collective.parts;
  const bool scatters = collective.operation == Operation::kReduceScatter;
  const auto numel_sent = [&](const CollectivePart& part) {
    return part.numel * collective.pieces_sent(size());
  };
  int64_t bytes = 0;
  for (const CollectivePart& part : parts) {
    bytes += numel_sent(part) * size() * size_of(part.dtype);
  }
  std::byte* const all = scratch(bytes, stream);
  session_->issue(*member_, make_record(collective), stream,
                  [&](const nccl::Library& library, nccl::Comm* comm, void* native) {
                    std::byte* to = all;
                    for (const CollectivePart& part : parts) {
                      const int64_t numel = numel_sent(part);
                      if (numel == 0) continue;
                      const nccl::Result result =
                          library.all_gather(sent(part), to, static_cast<size_t>(numel),
                                             type_of(part.dtype), comm, native);
                      if (result != nccl::Result::kSuccess) return result;
                      to += numel * size() * size_of(part.dtype);
                    }
                    return nccl::Result::kSuccess;
                  });
  // The kernels run on the same stream, so they run after the gather.
  std::byte* from = all;
  for (const CollectivePart& part : parts) {
    const int64_t bytes_sent = numel_sent(part) * size_of(part.dtype);
    const int64_t begin = scatters ? rank() * part.numel * size_of(part.dtype) : 0;
    std::vector<const void*> sources;
    for (int peer = 0; peer < size(); ++peer) sources.push_back(from + peer * bytes_sent + begin);
    if (part.numel > 0) {
      const kernels::ReduceRun run{
          .sources = sources, .out = part.recv, .numel = part.numel, .dtype = part.dtype};
      kernels::reduce(stream, {&run, 1}, ReduceOp::kMax);
    }
    from += bytes_sent * size();
  }
  stream.record(scratch_used_);
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  require_color(color, "Communicator::split");
  // The ranks exchange their arguments over this communicator. The control plane is not usable,
  // because it connects all ranks of the job, and this communicator may have only some of them.
  struct Wish {
    int64_t color, key;
  };
  Stream& stream = session_->own_stream();
  // The memory is pinned, because a stream copies only from pinned memory.
  const Buffer mine = session_->device().allocate(sizeof(Wish), MemoryKind::kPinned);
  const Wish wish{color, key};
  std::memcpy(mine.data(), &wish, sizeof wish);
  auto wishes = std::vector<Wish>(ranks_.size());
  const auto bytes = static_cast<int64_t>(sizeof(Wish));
  const Buffer all = session_->device().allocate(bytes * (size() + 1), MemoryKind::kDevice);
  stream.copy(all.at(0), mine.data(), bytes);
  const CollectivePart part{all.at(0), all.at(bytes), 2, DType::kInt64};
  // The tag has no place in the collective sequence, so this collective is not compared over ranks.
  all_gather({&part, 1}, {.label = "split"}, stream);
  // This read blocks, because the groups are needed on the host.
  stream.read(wishes.data(), all.at(bytes), bytes * size());

  std::vector<int> group;
  for (int peer = 0; peer < size(); ++peer) {
    if (wishes[static_cast<size_t>(peer)].color == color) group.push_back(peer);
  }
  // The sort is stable, so ranks with equal keys keep their order, as in MPI_Comm_split and
  // ncclCommSplit.
  std::ranges::stable_sort(group, {},
                           [&](int peer) { return wishes[static_cast<size_t>(peer)].key; });
  const auto own = static_cast<int>(std::ranges::find(group, rank_) - group.begin());
  // Replaces ranks of this communicator by ranks of the job, because failures name ranks of the
  // job.
  for (int& peer : group) peer = ranks_[static_cast<size_t>(peer)];
  auto member = session_->split(*member_, {.color = color,
                                           .key = key,
                                           .ranks = group,
                                           .rank = own,
                                           .name = fmt::format("group {}", color)});
  return make_warm(session_, std::move(member), std::move(group), own);
}

std::unique_ptr<Communicator> NcclCommunicator::with_windows(bool by_copy_engines) {
  nccl::require_windows(session_->library());
  // Windows and copy engines are settings of a whole NCCL communicator, so a new one is made.
  auto member = session_->split(*member_, {.key = rank_,
                                           .ranks = ranks_,
                                           .rank = rank_,
                                           .name = "gathers into windows",
                                           .by_copy_engines = by_copy_engines});
  return make_warm(session_, std::move(member), ranks_, rank_, Memory::kWindows);
}

void NcclCommunicator::abort(std::string_view cause) noexcept { session_->plane().abort(cause); }

std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclSession> session,
                                                     std::string_view name,
                                                     const std::vector<int>& ranks) {
  // All ranks take part in the exchange, even if they are in different groups.
  ControlPlane& plane = session->plane();
  const bool is_first = ranks.front() == plane.rank();
  std::string own;
  if (is_first) {
    // Only the first rank of a group makes an id. The other ranks of the group send an empty text
    // in the exchange below.
    const nccl::UniqueId id = session->make_unique_id();
    own.assign(id.internal.data(), id.internal.size());
  }
  const std::string what = fmt::format("NCCL id of {}", name);
  const std::vector<std::string> ids = plane.exchange({.label = what}, own);
  nccl::UniqueId id{};
  std::ranges::copy(ids[static_cast<size_t>(ranks.front())], id.internal.begin());
  const auto rank = static_cast<int>(std::ranges::find(ranks, plane.rank()) - ranks.begin());
  auto member = session->join(id, ranks, rank, std::string(name));
  return make_warm(session, std::move(member), ranks, rank);
}

}  // namespace fsdp
