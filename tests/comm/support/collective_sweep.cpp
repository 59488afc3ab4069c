#include "comm/support/collective_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp::testing {
namespace {

constexpr std::array kDTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                             DType::kInt64,   DType::kInt32,    DType::kUInt8};
constexpr unsigned char kUntouched = 0xa5;
constexpr int64_t kGuardBytes = 64;

// Returns the bytes of a small non-negative integer in a dtype. They are exact for all values used
// here.
std::array<std::byte, 8> encode(DType dtype, int64_t value) {
  std::array<std::byte, 8> bytes{};
  const auto put = [&](auto number) { std::memcpy(bytes.data(), &number, sizeof number); };
  switch (dtype) {
    case DType::kFloat32:
      put(static_cast<float>(value));
      break;
    case DType::kBFloat16:
      put(static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
      break;
    case DType::kFloat16: {
      const int exponent = value == 0 ? 0 : std::ilogb(static_cast<double>(value));
      const auto fraction = static_cast<int64_t>(std::ldexp(value, 10 - exponent)) - 1024;
      put(static_cast<uint16_t>(value == 0 ? 0 : ((exponent + 15) << 10) | fraction));
      break;
    }
    case DType::kFloat64:
      put(static_cast<double>(value));
      break;
    case DType::kInt64:
      put(value);
      break;
    case DType::kInt32:
      put(static_cast<int32_t>(value));
      break;
    case DType::kUInt8:
      put(static_cast<uint8_t>(value));
      break;
  }
  return bytes;
}

// A function that returns an integer for a rank and an element. It is periodic in the element, so
// that filling and checking can copy whole periods.
using Value = std::function<int64_t(int rank, int64_t element)>;
constexpr int64_t kPeriod = 291;  // a multiple of 3 and 97

struct Array {
  std::byte* data;
  DType dtype;
  int64_t numel;

  std::byte* at(int64_t element) const { return data + element * size_of(dtype); }
};

std::vector<std::byte> one_period(DType dtype, int64_t first,
                                  const std::function<int64_t(int64_t)>& value) {
  const int64_t size = size_of(dtype);
  std::vector<std::byte> bytes(kPeriod * size);
  for (int64_t i = 0; i < kPeriod; ++i) {
    const auto element = encode(dtype, value(first + i));
    std::memcpy(bytes.data() + i * size, element.data(), size);
  }
  return bytes;
}

void fill(const Array& array, int64_t begin, int64_t numel,
          const std::function<int64_t(int64_t)>& value) {
  const auto period = one_period(array.dtype, 0, value);
  const int64_t size = size_of(array.dtype);
  for (int64_t i = 0; i < numel; i += kPeriod) {
    std::memcpy(array.at(begin + i), period.data(), std::min(kPeriod, numel - i) * size);
  }
}

// Returns true if the elements from `begin` on are value(0), value(1), …
bool holds(const Array& array, int64_t begin, int64_t numel,
           const std::function<int64_t(int64_t)>& value) {
  const auto period = one_period(array.dtype, 0, value);
  const int64_t size = size_of(array.dtype);
  for (int64_t i = 0; i < numel; i += kPeriod) {
    if (std::memcmp(array.at(begin + i), period.data(), std::min(kPeriod, numel - i) * size) != 0) {
      return false;
    }
  }
  return true;
}

class Sweep {
 public:
  Sweep(Communicator& communicator, const SweepCase& sweep_case)
      : communicator_(communicator),
        case_(sweep_case),
        stream_(testing::make_cpu_stream(
            sweep_case.threaded ? testing::CpuStreams::kThreaded : testing::CpuStreams::kInline,
            "sweep")),
        whole_(allocate(size())),
        piece_(allocate(1)) {}

  std::vector<std::string> run() {
    for (const DType dtype : kDTypes) {
      dtype_ = dtype;
      all_gather();
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
        if (op == ReduceOp::kAvg && !is_floating(dtype)) continue;
        if (op == ReduceOp::kAvg && size() > 16) continue;  // the averages are not exact
        if (op == ReduceOp::kAvg && !communicator_.capabilities().averages) continue;
        reduce_scatter(op);
        all_reduce(op);
      }
      broadcast(0);
      broadcast(size() - 1);
      communicator_.barrier(tag("barrier"), *stream_);
      stream_->synchronize();
    }
    return std::move(wrong_);
  }

 private:
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  int64_t numel() const { return case_.numel; }
  static CollectiveTag tag(std::string_view label) { return {.sequence = 0, .label = label}; }

  // Allocates once per case, because new pages for every collective would take more time than the
  // collectives.
  Buffer allocate(int64_t pieces) const {
    const int64_t bytes = case_.numel * pieces * 8 + kGuardBytes;
    return case_.in_peer_memory ? communicator_.allocate(bytes) : allocate_host(bytes);
  }

  Array make(const Buffer& buffer, int64_t numel) const {
    std::memset(buffer.data(), kUntouched, numel * size_of(dtype_) + kGuardBytes);
    return {buffer.at(0), dtype_, numel};
  }
  Array make_whole() const { return make(whole_, numel() * size()); }
  // Returns the array for the received data, or an empty array if the collective is in place.
  Array make_apart() const { return make(piece_, case_.in_place ? 0 : numel()); }

  bool guarded(const Array& array) const {
    const auto* guard = reinterpret_cast<const unsigned char*>(array.at(array.numel));
    return std::all_of(guard, guard + kGuardBytes,
                       [](unsigned char byte) { return byte == kUntouched; });
  }

  // Returns the part of a collective that sends `numel_sent` elements beginning at `send`.
  CollectivePart part_of(std::byte* send, std::byte* recv, int64_t numel_sent) {
    CollectivePart part{send, recv, numel(), dtype_};
    if (!case_.in_runs || rank() % 3 == 1) return part;  // ranks may differ in this
    // The runs end inside a piece or at the end of a piece, and one run is empty. They are
    // contiguous in memory, but a communicator does not know this.
    const std::array cuts{int64_t{0}, numel_sent / 3, numel_sent / 3, numel_sent / 2, numel_sent};
    for (size_t i = 0; i < runs_.size(); ++i) {
      runs_[i] = {send + cuts[i] * size_of(dtype_), cuts[i + 1] - cuts[i]};
    }
    part.send = nullptr;
    part.runs = runs_;
    return part;
  }

  void expect(bool right, std::string_view what) {
    if (right || wrong_.size() >= 5) return;
    wrong_.push_back(fmt::format("rank {}/{}: {} of {} is wrong ({})", rank(), size(), what,
                                 name_of(dtype_), describe(case_)));
  }

  // Returns a function for element i that rank r sends. `op` selects values whose reduction is
  // exact.
  Value sent_for(ReduceOp op) const {
    if (op == ReduceOp::kMax) return [](int r, int64_t i) { return (i * 5 + r * 11) % 97; };
    const int64_t factor = op == ReduceOp::kAvg ? size() : 1;
    return [factor](int r, int64_t i) { return (i + r) % 3 * factor; };
  }

  std::function<int64_t(int64_t)> reduced_for(ReduceOp op, int64_t first) const {
    return [=, this, value = sent_for(op)](int64_t i) {
      int64_t result = 0;
      for (int r = 0; r < size(); ++r) {
        const int64_t sent = value(r, first + i);
        result = op == ReduceOp::kMax ? std::max(result, sent) : result + sent;
      }
      return op == ReduceOp::kAvg ? result / size() : result;
    };
  }

  void all_gather() {
    const auto value = [](int r, int64_t i) { return (i + 2 * r) % 97; };
    const Array recv = make_whole();
    const Array apart = make_apart();
    const Array& send = case_.in_place ? recv : apart;
    const int64_t begin = case_.in_place ? rank() * numel() : 0;
    fill(send, begin, numel(), [&](int64_t i) { return value(rank(), i); });
    const CollectivePart part = part_of(send.at(begin), recv.data, numel());
    communicator_.all_gather({&part, 1}, tag("gather"), *stream_);
    stream_->synchronize();
    bool right = guarded(recv) && guarded(apart);
    for (int r = 0; r < size(); ++r) {
      right = right && holds(recv, r * numel(), numel(), [&](int64_t i) { return value(r, i); });
    }
    expect(right, "all_gather");
  }

  void reduce_scatter(ReduceOp op) {
    const Value value = sent_for(op);
    const Array send = make_whole();
    const Array apart = make_apart();
    for (int piece = 0; piece < size(); ++piece) {
      fill(send, piece * numel(), numel(), [&](int64_t i) { return value(rank(), piece + i); });
    }
    const Array& recv = case_.in_place ? send : apart;
    const int64_t begin = case_.in_place ? rank() * numel() : 0;
    const CollectivePart part = part_of(send.data, recv.at(begin), numel() * size());
    communicator_.reduce_scatter({&part, 1}, op, tag("scatter"), *stream_);
    stream_->synchronize();
    bool right =
        guarded(send) && guarded(apart) && holds(recv, begin, numel(), reduced_for(op, rank()));
    for (int piece = 0; piece < size(); ++piece) {
      if (case_.in_place && piece == rank()) continue;
      right = right && holds(send, piece * numel(), numel(),
                             [&](int64_t i) { return value(rank(), piece + i); });
    }
    expect(right, fmt::format("reduce_scatter {}", name_of(op)));
  }

  void all_reduce(ReduceOp op) {
    const Value value = sent_for(op);
    const Array send = make(whole_, numel());
    const Array apart = make_apart();
    const Array& recv = case_.in_place ? send : apart;
    fill(send, 0, numel(), [&](int64_t i) { return value(rank(), i); });
    const CollectivePart part = part_of(send.data, recv.data, numel());
    communicator_.all_reduce({&part, 1}, op, tag("reduce"), *stream_);
    stream_->synchronize();
    expect(guarded(send) && guarded(apart) && holds(recv, 0, numel(), reduced_for(op, 0)),
           fmt::format("all_reduce {}", name_of(op)));
  }

  void broadcast(int root) {
    const Array send = make(whole_, numel());
    const Array apart = make_apart();
    const Array& recv = case_.in_place ? send : apart;
    if (rank() == root) {
      fill(send, 0, numel(), [](int64_t i) { return i % 97; });
    }
    const CollectivePart part = part_of(send.data, recv.data, numel());
    communicator_.broadcast({&part, 1}, root, tag("broadcast"), *stream_);
    stream_->synchronize();
    expect(guarded(send) && guarded(apart) &&
               holds(recv, 0, numel(), [](int64_t i) { return i % 97; }),
           fmt::format("broadcast from {}", root));
  }

  Communicator& communicator_;
  SweepCase case_;
  std::unique_ptr<Stream> stream_;
  Buffer whole_;
  Buffer piece_;
  std::array<SendRun, 4> runs_;
  DType dtype_ = DType::kFloat32;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> sweep(Communicator& communicator, const SweepCase& sweep_case) {
  return Sweep(communicator, sweep_case).run();
}

std::vector<SweepCase> all_cases(int64_t large) {
  std::vector<SweepCase> cases;
  for (const int64_t numel : {0, 1, 3, 1009}) {
    for (const bool in_place : {false, true}) {
      for (const bool in_peer_memory : {false, true}) {
        cases.push_back({.numel = numel,
                         .in_place = in_place,
                         .in_peer_memory = in_peer_memory,
                         .threaded = numel == 1009 || numel == 1});
      }
    }
  }
  for (const int64_t numel : {int64_t{1}, int64_t{1009}, large}) {
    cases.push_back({.numel = numel,
                     .in_place = false,
                     .in_peer_memory = numel == large,
                     .threaded = numel == 1009,
                     .in_runs = true});
  }
  cases.push_back({.numel = large, .in_place = true, .in_peer_memory = true});
  cases.push_back({.numel = large, .in_place = false, .in_peer_memory = false});
  return cases;
}

std::string describe(const SweepCase& sweep_case) {
  return fmt::format(
      "numel {}, {} place, {} memory, {} stream{}", sweep_case.numel,
      sweep_case.in_place ? "in" : "out of", sweep_case.in_peer_memory ? "peer" : "any",
      sweep_case.threaded ? "threaded" : "inline", sweep_case.in_runs ? ", in runs" : "");
}

}  // namespace fsdp::testing
