// Tests ranks that wait for each other in different communicators. All must get an error at once
// that names both sides.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mesh_state.h"
#include "comm/support/error_texts.h"
#include "comm/support/steps_apart.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

TEST_CASE(
    "ranks that part ways into different communicators are told so at once, both sides named") {
  for (const std::string_view way : testing::kWaysApart) {
    for (const int world : {2, 3}) {
      for (const testing::CpuStreams kind :
           {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
        CAPTURE(way);
        CAPTURE(world);
        const int odd = world - 1;
        const auto errors = testing::errors_of_ranks(
            world, [&](const Mesh& mesh) { testing::step_apart(mesh, way, odd, kind); },
            {.mesh = {.timeout = std::chrono::minutes(10)}, .in_each_thread = {}});
        CHECK(errors[0].find(testing::kDisagree + "rank ") == 0);
        CHECK(errors[0].find(fmt::format(", rank {} issued ", odd)) != std::string::npos);
        const bool across = errors[0].find(testing::kOnDifferentCommunicators) != std::string::npos;
        // If streams have their own threads, the gathers may also be the first collectives to
        // differ.
        CHECK((across || kind == testing::CpuStreams::kThreaded));
        for (const std::string& error : errors) CHECK(error == errors[0]);
      }
    }
  }
}

TEST_CASE("the error of ranks that parted ways says what each came to do") {
  const auto errors = testing::errors_of_ranks(2, [&](const Mesh& mesh) {
    testing::step_apart(mesh, "skip", 1, testing::CpuStreams::kInline);
  });
  CHECK(errors[0] == testing::kDisagree +
                         "rank 0 issued all_gather of 300 float32 'u2' #20, rank 1 "
                         "issued reduce_scatter (sum) of 300 float32 'u2' #20 (collective #20" +
                         testing::kOnDifferentCommunicators +
                         "; hint: " + testing::kSameCollectivesHint);
}

TEST_CASE("numbers that begin anew in each communicator are no disagreement") {
  std::atomic<bool> said{false};
  const auto errors = testing::errors_of_ranks(
      2,
      [&](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        state_of(mesh)
            .gather_communicator(Axis::kShard)
            .barrier({.sequence = 7, .label = "x"}, *stream);
        // Waits until rank 0 has read the records. At this time, the last record of rank 1 has the
        // same number.
        while (mesh.rank() == 1 && !said) std::this_thread::yield();
        state_of(mesh)
            .reduce_communicator(Axis::kShard)
            .barrier({.sequence = 7, .label = "x"}, *stream);
      },
      {.mesh = {.timeout = std::chrono::milliseconds(3000),
                .on_event = [&](const MeshEvent&) { said = true; }},
       .in_each_thread = {}});
  for (const std::string& error : errors) CHECK(error == "");
}

}  // namespace
}  // namespace fsdp
