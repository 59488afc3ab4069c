// Measures collectives of thread ranks that share one device.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu_probe/probe.h"
#include "comm/mesh_state.h"
#include "runtime/device.h"
#include "tests/support/run_ranks.h"

namespace gpu_probe {
namespace {

constexpr int64_t kWarmUp = 2;

// The ranks and the size of a collective.
struct Exchange {
  fsdp::DeviceKind kind;
  int ranks;
  int64_t piece_numel;  // of each rank
};

// A function that issues one collective on the stream.
using Issue = std::function<void(const fsdp::Mesh& mesh, const fsdp::CollectivePart& part,
                                 fsdp::Stream& stream)>;

// Returns the seconds that one collective takes on the slowest rank.
double seconds_of(const Exchange& exchange, int64_t repetitions, bool gathers, const Issue& issue) {
  std::vector<double> seconds(static_cast<size_t>(exchange.ranks));
  fsdp::testing::run_ranks(
      exchange.ranks,
      [&](const fsdp::Mesh& mesh) {
        const auto stream = state_of(mesh).device().make_stream({.name = "collective"});
        fsdp::Communicator& communicator =
            gathers ? state_of(mesh).gather_communicator(fsdp::Axis::kShard)
                    : state_of(mesh).reduce_communicator(fsdp::Axis::kShard);
        const fsdp::Buffer whole = communicator.allocate(exchange.ranks * exchange.piece_numel * 4);
        const fsdp::Buffer piece = communicator.allocate(exchange.piece_numel * 4);
        std::byte* const own = whole.at(mesh.rank() * exchange.piece_numel * 4);
        const fsdp::CollectivePart part{.send = gathers ? own : whole.at(0),
                                        .recv = gathers ? whole.data() : piece.data(),
                                        .numel = exchange.piece_numel};
        for (int64_t i = 0; i < kWarmUp; ++i) issue(mesh, part, *stream);
        stream->synchronize();
        mesh.agree("begin", {});
        const auto begin = std::chrono::steady_clock::now();
        for (int64_t i = 0; i < repetitions; ++i) issue(mesh, part, *stream);
        stream->synchronize();
        seconds[static_cast<size_t>(mesh.rank())] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        mesh.agree("end", {});
      },
      {.mesh = {.device = exchange.kind}});
  return *std::max_element(seconds.begin(), seconds.end()) / static_cast<double>(repetitions);
}

int64_t repetitions_in(std::istream& arguments) {
  int64_t repetitions = 0;
  if (!(arguments >> repetitions) || repetitions < 1)
    refuse("the number of repetitions is missing");
  return repetitions;
}

}  // namespace

void serve_collectives(const Place& place, const Words& words) {
  const int ranks = std::stoi(words[0]);
  const int64_t bytes = std::stoll(words[1]);
  if (ranks < 2 || bytes % (ranks * 4) != 0)
    refuse("expected two ranks or more, with equally many floats each");
  const Exchange exchange{.kind = place.kind, .ranks = ranks, .piece_numel = bytes / (ranks * 4)};
  // Each rank reads the pieces of the other ranks and writes them.
  const double gathered = 2.0 * (ranks - 1) * static_cast<double>(bytes) * 1e-9;
  // Each rank reads the contributions of all ranks to its piece and writes the piece.
  const double reduced = (ranks + 1) * static_cast<double>(bytes) * 1e-9;
  serve({{"all_gather",
          [&](std::istream& arguments) {
            return gathered /
                   seconds_of(exchange, repetitions_in(arguments), /*gathers=*/true,
                              [](const auto& mesh, const auto& part, fsdp::Stream& stream) {
                                state_of(mesh)
                                    .gather_communicator(fsdp::Axis::kShard)
                                    .all_gather({&part, 1}, {.label = "gather"}, stream);
                              });
          }},
         {"reduce_scatter", [&](std::istream& arguments) {
            return reduced /
                   seconds_of(exchange, repetitions_in(arguments), /*gathers=*/false,
                              [](const auto& mesh, const auto& part, fsdp::Stream& stream) {
                                state_of(mesh)
                                    .reduce_communicator(fsdp::Axis::kShard)
                                    .reduce_scatter({&part, 1}, fsdp::ReduceOp::kSum,
                                                    {.label = "reduce"}, stream);
                              });
          }}});
}

}  // namespace gpu_probe
