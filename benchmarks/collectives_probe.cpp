// Runs one rank of tools/bench collectives. Rank 0 reads one command from each line of FIFO. All
// ranks run the command REPETITIONS times. Rank 0 prints the seconds of one repetition, from the
// first start on any rank to the last end.
//   fsdp-run -n 4 collectives_probe FIFO
//   all_gather | reduce_scatter  BYTES REPETITIONS shared|plain   BYTES of the unsharded float32s
//   barrier                      0 REPETITIONS -
//   copy                         BYTES REPETITIONS -   all ranks copy their own bytes at once
//   ping                         0 REPETITIONS -       a cache line there and back, two threads
//   wait                         0 MILLISECONDS -      rank 0 is late; CPU seconds of the others
// shared: memory from Communicator::allocate, which the engine uses. plain: any other memory.
#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "comm/make_mesh.h"
#include "comm/mesh_state.h"
#include "libtorch/gloo_links.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

constexpr int64_t kCommandBytes = 128;
constexpr int64_t kFloatBytes = sizeof(float);

struct Command {
  std::string name;
  int64_t bytes = 0;
  int64_t repetitions = 0;
  std::string memory;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Returns integers whose sums over ranks are exact in float32.
float value_of(int rank, int64_t element) {
  return static_cast<float>((element * 7 + rank * 131) % 1021);
}

// The memory of one collective. `whole` holds the pieces of all ranks, and `piece` holds one.
struct Memory {
  Buffer whole, piece;
  float* whole_data() const { return static_cast<float*>(whole.data()); }
  float* piece_data() const { return static_cast<float*>(piece.data()); }
};

class Probe {
 public:
  explicit Probe(const Mesh& mesh)
      : communicator_(state_of(mesh).gather_communicator(Axis::kWorld)),
        control_(state_of(mesh).control_communicator()),
        stream_(fsdp::cpu_device().make_stream({.name = "probe", .runs_beside = false})) {}

  // Returns rank 0's line on every rank, or an empty text at the end of the input.
  std::string share(std::string line) {
    line.resize(kCommandBytes);  // collectives have equal sizes on all ranks
    const CollectivePart part{line.data(), line.data(), kCommandBytes, DType::kUInt8};
    control_.broadcast({&part, 1}, 0, {0, "command"}, *stream_);
    return line.c_str();
  }

  double run(const Command& command) {
    if (command.name == "ping") return ping_pong(command.repetitions);
    if (command.name == "wait") return waiting(command.repetitions);
    if (command.name == "barrier") {
      return time(command.repetitions, [this] { communicator_.barrier({0, "barrier"}, *stream_); });
    }
    if (command.name == "copy") return copy(command);
    const bool gathers = command.name == "all_gather";
    if (!gathers && command.name != "reduce_scatter") refuse(command);
    const Memory& memory = memory_for(command);
    const auto issue = [&] { gathers ? gather(memory) : reduce(memory); };
    // Each case is checked once, before its first time is measured.
    if (checked_.insert(fmt::format("{} {} {}", command.name, command.bytes, command.memory))
            .second) {
      fill(memory, gathers);
      issue();
      check(memory, gathers);
    }
    return time(command.repetitions, issue);
  }

 private:
  [[noreturn]] static void refuse(const Command& command) {
    throw InvalidArgument(
        {.what = fmt::format("there is no command '{}'", command.name),
         .where = "collectives_probe",
         .hint = "see the comment at the top of benchmarks/collectives_probe.cpp"});
  }

  // Returns the seconds of one repetition. All ranks use the clock of the host, so their times can
  // be compared. The maximum of -start is the first start.
  template <class Work>
  double time(int64_t repetitions, const Work& work) {
    control_.barrier({0, "start"}, *stream_);
    const double start = seconds_now();
    for (int64_t i = 0; i < repetitions; ++i) work();
    const double end = seconds_now();
    return (largest(end) + largest(-start)) / static_cast<double>(repetitions);
  }

  double largest(double value) {
    const CollectivePart part{&value, &value, 1, DType::kFloat64};
    control_.all_reduce({&part, 1}, ReduceOp::kMax, {0, "largest"}, *stream_);
    return value;
  }

  Memory& memory_for(const Command& command) {
    const std::string key = fmt::format("{} {}", command.bytes, command.memory);
    if (key == memory_key_) return memory_;
    memory_ = {};
    memory_key_ = key;
    const int64_t piece = command.bytes / communicator_.size();
    const bool shared = command.memory == "shared";
    const auto allocate = [&](int64_t bytes) {
      return shared ? communicator_.allocate(bytes) : allocate_host(bytes);
    };
    memory_ = {.whole = allocate(command.bytes), .piece = allocate(piece)};
    // Every page is written here, so that no page fault is timed.
    std::memset(memory_.whole.data(), 1, command.bytes);
    std::memset(memory_.piece.data(), 1, piece);
    return memory_;
  }

  int64_t piece_numel(const Memory& memory) const { return memory.piece.bytes() / kFloatBytes; }

  void gather(const Memory& memory) {
    const CollectivePart part{memory.piece.data(), memory.whole.data(), piece_numel(memory),
                              DType::kFloat32};
    communicator_.all_gather({&part, 1}, {0, "gather"}, *stream_);
  }

  void reduce(const Memory& memory) {
    const CollectivePart part{memory.whole.data(), memory.piece.data(), piece_numel(memory),
                              DType::kFloat32};
    communicator_.reduce_scatter({&part, 1}, ReduceOp::kSum, {0, "reduce"}, *stream_);
  }

  void fill(const Memory& memory, bool gathers) const {
    const int64_t numel = piece_numel(memory) * (gathers ? 1 : communicator_.size());
    float* const to = gathers ? memory.piece_data() : memory.whole_data();
    for (int64_t i = 0; i < numel; ++i) to[i] = value_of(communicator_.rank(), i);
  }

  void check(const Memory& memory, bool gathers) const {
    const int64_t numel = piece_numel(memory);
    const int size = communicator_.size();
    int64_t wrong = 0;
    for (int64_t i = 0; i < numel; ++i) {
      float sum = 0;
      for (int rank = 0; rank < size; ++rank) {
        sum += value_of(rank, communicator_.rank() * numel + i);
        if (gathers) wrong += memory.whole_data()[rank * numel + i] != value_of(rank, i);
      }
      if (!gathers) wrong += memory.piece_data()[i] != sum;
    }
    if (wrong == 0) return;
    throw StateError(
        {.what = fmt::format("{} elements are wrong", wrong),
         .where = gathers ? "all_gather" : "reduce_scatter",
         .hint = "correct the result first: the time of a wrong result does not count"});
  }

  double copy(const Command& command) {
    const Buffer from = allocate_host(command.bytes), to = allocate_host(command.bytes);
    std::memset(from.data(), 1, command.bytes);
    std::memset(to.data(), 2, command.bytes);
    return time(command.repetitions, [&] {
      std::memcpy(to.data(), from.data(), command.bytes);
      asm volatile("" ::: "memory");  // keeps the copy in the code
    });
  }

  // Times how long a cache line takes between two threads of rank 0, while the other ranks sleep.
  double ping_pong(int64_t repetitions) {
    double seconds = 0;
    if (communicator_.rank() == 0) {
      alignas(64) std::atomic<int64_t> ball{0};
      std::thread other([&] {
        for (int64_t i = 0; i < repetitions; ++i) {
          while (ball.load(std::memory_order_acquire) != 2 * i + 1) {
          }
          ball.store(2 * i + 2, std::memory_order_release);
        }
      });
      ball.store(1, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != 2) {
      }
      const double start = seconds_now();
      for (int64_t i = 1; i < repetitions; ++i) {
        ball.store(2 * i + 1, std::memory_order_release);
        while (ball.load(std::memory_order_acquire) != 2 * i + 2) {
        }
      }
      seconds = (seconds_now() - start) / static_cast<double>(repetitions - 1);
      other.join();
    }
    return largest(seconds);
  }

  double waiting(int64_t milliseconds) {
    control_.barrier({0, "start"}, *stream_);
    if (communicator_.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }
    const double start = cpu_seconds();
    communicator_.barrier({0, "late"}, *stream_);
    return largest(communicator_.rank() == 0 ? 0 : cpu_seconds() - start);
  }

  Communicator& communicator_;
  Communicator& control_;
  std::unique_ptr<fsdp::Stream> stream_;
  std::set<std::string> checked_;
  std::string memory_key_;
  Memory memory_;
};

int serve(const Mesh& mesh, const char* fifo) {
  std::ifstream commands;
  if (mesh.rank() == 0) commands.open(fifo);
  Probe probe(mesh);
  while (true) {
    std::string line;
    if (mesh.rank() == 0) std::getline(commands, line);
    line = probe.share(line);
    if (line.empty()) return 0;
    Command command;
    std::istringstream words(line);
    words >> command.name >> command.bytes >> command.repetitions >> command.memory;
    const double seconds = probe.run(command);
    if (mesh.rank() != 0) continue;
    fmt::print("{:.9f}\n", seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: fsdp-run -n RANKS collectives_probe FIFO\n");
    return 64;
  }
  // Between commands the ranks wait in a collective for as long as the peer computes. Only ranks of
  // several hosts use Gloo (tools/bench hosts).
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { return fsdp::serve(mesh, argv[1]); },
      {.timeout = std::chrono::minutes(10)}, {.open_transport = fsdp::open_gloo});
}
