#include "fsdp/mesh.h"

#include <doctest/doctest.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

TEST_CASE("agree passes when all ranks say the same") {
  for (const int world : {1, 2, 3, 5}) {
    testing::run_ranks(world, [](const Mesh& mesh) {
      mesh.agree("model", {"layer.weight float32 [3, 4]", "layer.bias float32 [3]"});
      mesh.agree("empty", {});
    });
  }
}

TEST_CASE("agree refuses on all ranks, with the first difference and both values") {
  const auto errors = testing::errors_of_ranks(4, [](const Mesh& mesh) {
    std::vector<std::string> lines{"hidden 128", "layers 2", "heads 2"};
    if (mesh.rank() == 2) lines[1] = "layers 3";
    mesh.agree("configuration", lines);
  });
  for (const std::string& error : errors) {
    CHECK(error ==
          "ranks do not agree on the configuration: rank 0 has 'layers 2', rank 2 has 'layers 3' "
          "(configuration, line 2); hint: start all ranks with the same program, options and "
          "files");
  }
}

TEST_CASE("agree refuses lists of different lengths with code 78") {
  const auto thrown = testing::run_ranks_to_end(3, [](const Mesh& mesh) {
    std::vector<std::string> lines{"a"};
    if (mesh.rank() == 1) lines.push_back("b");
    mesh.agree("model", lines);
  });
  for (const auto& exception : thrown.of_rank) {
    try {
      REQUIRE(exception);
      std::rethrow_exception(exception);
    } catch (const CommError& error) {
      CHECK(error.code() == ExitCode::kConfiguration);
      CHECK(error.text().what ==
            "ranks do not agree on the model: rank 0 has '(nothing)', rank 1 has 'b'");
    }
  }
}

// Returns the errors of the ranks. Before the second of three collectives, rank 1 annotates it with
// `theirs`, and the other ranks with `ours`.
std::vector<std::string> errors_after_notes(const std::vector<std::string>& ours,
                                            const std::vector<std::string>& theirs) {
  return testing::errors_of_ranks(3, [&](const Mesh& mesh) {
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
    state_of(mesh).order().note("the same everywhere");
    const auto meet = [&] {
      state_of(mesh)
          .gather_communicator(Axis::kShard)
          .barrier(state_of(mesh).order().next(Operation::kBarrier, 0, "layers.0"), *stream);
    };
    meet();
    for (const std::string& text : mesh.rank() == 1 ? theirs : ours)
      state_of(mesh).order().note(text);
    meet();
    meet();
  });
}

TEST_CASE("what ranks note is compared by the next collective, and both sides are shown") {
  const auto errors = errors_after_notes({"AdamW step 7: lr 0.001"}, {"AdamW step 7: lr 0.002"});
  for (const std::string& error : errors) {
    CHECK(error.find(testing::kDisagree +
                     "rank 0 issued barrier 'layers.0' #2 after "
                     "'AdamW step 7: lr 0.001', rank 1 issued barrier 'layers.0' #2 after 'AdamW "
                     "step 7: lr 0.002' (collective 2 of the communicator)") == 0);
  }
}

TEST_CASE("notes that are equal, whatever their number and length, are no difference") {
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ä";
  const std::vector<std::string> notes{"AdamW step 7: lr 0.001", "clip 1", umlauts};
  for (const std::string& error : errors_after_notes(notes, notes)) CHECK(error == "");
}

TEST_CASE("notes that differ in number, order or far beyond what is shown are found") {
  const std::string clip = "clip 1";
  const std::string step = "SGD step 3: lr 0.1";
  CHECK(errors_after_notes({clip, step}, {step})[0].find(
            "#2 after 'clip 1; SGD step 3: lr 0.1', rank 1 issued barrier 'layers.0' #2 after 'SGD "
            "step 3: lr 0.1'") != std::string::npos);
  CHECK(errors_after_notes({}, {step})[0].find(
            "rank 0 issued barrier 'layers.0' #2, rank 1 issued barrier 'layers.0' #2 after 'SGD "
            "step 3: lr 0.1'") != std::string::npos);
  CHECK(errors_after_notes({clip, step}, {step, clip})[0].find("ranks disagree") == 0);
  CHECK(errors_after_notes({"ab", "c"}, {"a", "bc"})[0].find("ranks disagree") == 0);
  for (const int length : {95, 96, 200, 1000}) {
    const std::string text(length, 'x');
    const std::string shown = "after '" + std::string(92, 'x') + "…'";
    const std::string error = errors_after_notes({text + "a"}, {text + "b"})[0];
    CHECK(error.find("barrier 'layers.0' #2 " + shown + ", rank 1 issued barrier 'layers.0' #2 " +
                     shown + "; their notes differ after the part that is shown") !=
          std::string::npos);
  }
}

TEST_CASE("copies of a mesh share what its engines hold, which ends with its last holder") {
  const Mesh mesh = Mesh::single();
  const Mesh copy = mesh;
  int made = 0;
  const auto make = [&] { return ++made, std::make_shared<SharedByEngines>(); };
  auto first = state_of(mesh).shared_by_engines(make);
  CHECK(state_of(copy).shared_by_engines(make) == first);
  CHECK(made == 1);
  const std::weak_ptr<SharedByEngines> ended = first;
  first.reset();
  CHECK(ended.expired());
  CHECK(state_of(mesh).shared_by_engines(make) != nullptr);
  CHECK(made == 2);
}

TEST_CASE("thread ranks are numbered and a world without ranks is refused") {
  std::mutex mutex;
  std::set<int> ranks;
  testing::run_ranks(5, [&](const Mesh& mesh) {
    CHECK(mesh.world_size() == 5);
    CHECK(mesh.local_rank() == mesh.rank());
    CHECK(mesh.size(Axis::kShard) == 5);
    const std::lock_guard lock(mutex);
    ranks.insert(mesh.rank());
  });
  CHECK(ranks == std::set<int>{0, 1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(Mesh::local(0),
                       "world_size is 0, expected 1 or more; hint: pass the number of ranks",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp
