// Tests the choice of a job's device: either all ranks compute on GPUs, or none does.
#include "comm/gpu_choice.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local_mesh.h"

namespace fsdp {
namespace {

struct Answer {
  std::string text;                   // "gpu", "cpu", or the text of the error
  std::vector<std::string> warnings;  // texts that on_event of the rank received
};

// Returns the result of each rank for the given choices of all ranks.
std::vector<Answer> answers(DeviceKind kind, const std::vector<GpuChoice>& choices) {
  std::vector<Answer> answers(choices.size());
  std::vector<std::thread> threads;
  for (MeshParts& each : local_mesh(static_cast<int>(choices.size()), {})) {
    threads.emplace_back([&, parts = std::move(each)] {
      const auto rank = static_cast<size_t>(parts.control_plane->rank());
      Answer& answer = answers[rank];
      MeshOptions options{.device = kind};
      options.on_event = [&](const MeshEvent& event) {
        answer.warnings.push_back(event.text.cause + "; " + event.text.hint);
      };
      try {
        const bool on_gpus = compute_on_gpus(options, choices[rank], *parts.control_plane);
        answer.text = on_gpus ? "gpu" : "cpu";
      } catch (const InvalidArgument& error) {
        answer.text = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

GpuChoice gpu(const std::string& uuid, const std::string& board) {
  return {.device = &cpu_device(),
          .uuid = "GPU-" + uuid,
          .board = board,
          .place = "localhost" + board.substr(board.find(' '))};
}

// Expects `text` on all ranks. With kAuto, expects the reason as a warning on rank 0 only.
void expect_none(const std::vector<GpuChoice>& choices, const std::string& cause,
                 const std::string& hint) {
  for (const Answer& answer : answers(DeviceKind::kCuda, choices)) {
    CHECK(answer.text == "ranks cannot compute on a GPU (device cuda); " + cause +
                             "; hint: " + hint + "; use device auto to fall back to the CPU");
    CHECK(answer.warnings.empty());
  }
  const auto with_auto = answers(DeviceKind::kAuto, choices);
  for (size_t rank = 0; rank < choices.size(); ++rank) {
    CHECK(with_auto[rank].text == "cpu");
    CHECK(with_auto[rank].warnings.size() == (rank == 0 ? 1 : 0));
  }
  CHECK(with_auto[0].warnings.front() ==
        cause + "; " + hint + "; use device cpu to avoid this warning");
}

TEST_CASE("ranks with a GPU each compute on them, also where two hosts have one name") {
  const std::vector<GpuChoice> choices{gpu("1", "boot-a 01:00.0"), gpu("2", "boot-a 02:00.0"),
                                       gpu("3", "boot-b 01:00.0")};
  std::vector<GpuChoice> untold = choices;
  for (GpuChoice& each : untold) each.uuid.clear();
  for (const Answer& answer : answers(DeviceKind::kCuda, untold)) CHECK(answer.text == "gpu");
  for (const DeviceKind kind : {DeviceKind::kCuda, DeviceKind::kAuto}) {
    for (const Answer& answer : answers(kind, choices)) CHECK(answer.text == "gpu");
  }
  for (const Answer& answer : answers(DeviceKind::kCpu, choices)) CHECK(answer.text == "cpu");
}

TEST_CASE("where one rank has no GPU none computes on one, and the reason is said") {
  expect_none({gpu("1", "boot-a 01:00.0"),
               {.why_none = "LOCAL_RANK=1, expected less than the number of visible GPUs, 1",
                .hint = "start fewer"}},
              "rank 1: LOCAL_RANK=1, expected less than the number of visible GPUs, 1",
              "start fewer");
}

TEST_CASE("two ranks with one GPU are refused, unless NCCL was told that they may share it") {
  // Three cases: the same GPU, the same GPU in containers that report different hosts, and two
  // instances of one GPU.
  for (const GpuChoice& last :
       {gpu("1", "boot-a 01:00.0"), gpu("1", "boot-b 01:00.0"), gpu("3", "boot-a 01:00.0")}) {
    const std::vector<GpuChoice> choices{gpu("1", "boot-a 01:00.0"), gpu("2", "boot-a 02:00.0"),
                                         last};
    expect_none(choices, "ranks 0 and 2 share a GPU (localhost 01:00.0)",
                "start at most one rank per GPU");
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    for (const Answer& answer : answers(DeviceKind::kCuda, choices)) CHECK(answer.text == "gpu");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  }
}

}  // namespace
}  // namespace fsdp
