#include "comm/support/random_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/buffer.h"

namespace fsdp::testing {
namespace {

constexpr std::array kIntegers{DType::kInt64, DType::kInt32, DType::kUInt8};
constexpr int64_t kPieceAtMost = 150'000;
constexpr int64_t kPieceAtMostOfMany = 3'000;

// Returns a value that fits into a byte. A sum of bytes wraps, and equals the low byte of a sum in
// a wider type.
uint64_t sent_by(int rank, int64_t element) {
  return static_cast<uint64_t>(element * 7 + rank * 131) % 251;
}

void write(std::byte* at, DType dtype, uint64_t value) { std::memcpy(at, &value, size_of(dtype)); }

// One part of one rank, with its memory.
class Part {
 public:
  Part(Operation operation, DType dtype, int64_t numel, const Communicator& group, Random& own)
      : size_(group.size()),
        sends_(numel * (operation == Operation::kReduceScatter ? size_ : 1)),
        receives_(numel * (operation == Operation::kAllGather ? size_ : 1)) {
    const int64_t bytes = size_of(dtype);
    const bool in_place = below(own, 3) == 0;
    send_memory_ = allocate_host(std::max(sends_, in_place ? receives_ : 0) * bytes + 1);
    if (!in_place) recv_memory_ = allocate_host(receives_ * bytes + 1);
    std::byte* send = send_memory_.at(0);
    std::byte* recv = in_place ? send : recv_memory_.at(0);
    const int64_t own_piece = group.rank() * numel * bytes;
    if (in_place && operation == Operation::kAllGather) send += own_piece;
    if (in_place && operation == Operation::kReduceScatter) recv += own_piece;
    for (int64_t i = 0; i < sends_; ++i) write(send + i * bytes, dtype, sent_by(group.rank(), i));
    part_ = {send, recv, numel, dtype};
    if (!in_place && below(own, 2) == 0) cut(own);
  }

  CollectivePart part() const {
    CollectivePart part = part_;
    part.runs = runs_;
    return part;
  }

  int64_t wrong(Operation operation, int rank, int root) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < receives_; ++i) {
      uint64_t value = 0;
      if (operation == Operation::kAllGather) {
        value = sent_by(static_cast<int>(i / part_.numel), i % part_.numel);
      } else if (operation == Operation::kBroadcast) {
        value = sent_by(root, i);
      } else {
        const int64_t piece = operation == Operation::kReduceScatter ? rank * part_.numel : 0;
        for (int peer = 0; peer < size_; ++peer) value += sent_by(peer, piece + i);
      }
      std::array<std::byte, 8> expected;
      write(expected.data(), part_.dtype, value);
      const int64_t bytes = size_of(part_.dtype);
      const auto* received = static_cast<const std::byte*>(part_.recv) + i * bytes;
      wrong += std::memcmp(received, expected.data(), bytes) != 0;
    }
    return wrong;
  }

 private:
  // Cuts the sent data into runs of any length. Copies each run to its own memory, and overwrites
  // the original.
  void cut(Random& own) {
    const int64_t bytes = size_of(part_.dtype);
    auto* from = static_cast<const std::byte*>(part_.send);
    for (int64_t at = 0; at < sends_ || runs_.empty();) {
      const bool last = runs_.size() == 20;
      const int64_t numel = last ? sends_ - at : std::min(sends_ - at, below(own, sends_ + 1));
      run_memory_.push_back(allocate_host(numel * bytes + 1));
      std::memcpy(run_memory_.back().data(), from + at * bytes, numel * bytes);
      runs_.push_back({run_memory_.back().data(), numel});
      at += numel;
    }
    std::memset(send_memory_.data(), 0xee, send_memory_.bytes());
  }

  int size_;
  int64_t sends_, receives_;
  Buffer send_memory_, recv_memory_;
  std::vector<Buffer> run_memory_;
  std::vector<SendRun> runs_;
  CollectivePart part_;
};

}  // namespace

int64_t below(Random& random, int64_t end) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
}

std::string random_name(Random& random) {
  std::string name(10 + below(random, 191), 'x');
  for (char& each : name) each = "abcdefghijklmnopqrstuvwxyz0123456789._"[below(random, 38)];
  return name;
}

std::vector<std::string> random_calls(Communicator& communicator, uint64_t seed, int calls,
                                      CpuStreams streams) {
  const auto stream = make_cpu_stream(streams, "random");
  Random common(seed), own(seed * 1000 + communicator.rank());
  std::vector<std::string> errors;
  for (int call = 0; call < calls; ++call) {
    const Operation operation = kOperations[below(common, kOperations.size())];
    const int root = static_cast<int>(below(common, communicator.size()));
    const bool many = below(common, 7) == 0;  // more parts than one exchange of records can hold
    const int64_t count = many ? 33 + below(common, 40) : 1 + below(common, 6);
    std::vector<Part> memory;
    for (int64_t i = 0; i < count; ++i) {
      const DType dtype = kIntegers[below(common, kIntegers.size())];
      const std::array<int64_t, 4> at_most{1, 6, 1000, many ? kPieceAtMostOfMany : kPieceAtMost};
      const int64_t numel = below(common, at_most[below(common, at_most.size())]);
      memory.emplace_back(operation, dtype, numel, communicator, own);
    }
    std::vector<CollectivePart> parts;
    for (const Part& each : memory) parts.push_back(each.part());
    const std::string name = random_name(common);
    const CollectiveTag tag{.sequence = 0, .label = name};
    switch (operation) {
      case Operation::kAllGather:
        communicator.all_gather(parts, tag, *stream);
        break;
      case Operation::kReduceScatter:
        communicator.reduce_scatter(parts, ReduceOp::kSum, tag, *stream);
        break;
      case Operation::kAllReduce:
        communicator.all_reduce(parts, ReduceOp::kSum, tag, *stream);
        break;
      default:
        communicator.broadcast(parts, root, tag, *stream);
    }
    stream->synchronize();
    int64_t wrong = 0;
    for (const Part& each : memory) wrong += each.wrong(operation, communicator.rank(), root);
    if (wrong == 0) continue;
    errors.push_back(fmt::format("rank {}/{}: {} elements of {} parts of call {}, {}, are wrong",
                                 communicator.rank(), communicator.size(), wrong, count, call,
                                 name_of(operation)));
  }
  return errors;
}

}  // namespace fsdp::testing
