// Runs the program of the README alone and on several ranks, with the engine's flags.
#include <doctest/doctest.h>

#include <string>

#include "support/run_program.h"

using namespace fsdp::testing;

namespace {

double last_loss(const std::string& out) { return std::stod(out.substr(out.rfind("loss ") + 5)); }

// Checks that the program prints one line for any number of ranks, and that the launcher then
// prints its line.
void check_refused(const Words& arguments, const std::string& text) {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const ProcessResult result = run_ranks_of(HELLO_UNIT, ranks, arguments);
    INFO(result.out << result.err);
    CHECK(result.code == 64);
    const std::string line = result.err.substr(0, result.err.find('\n'));
    CHECK(line.starts_with("fsdp: error[64] rank 0/"));
    CHECK(line.ends_with(": " + text));
    CHECK(result.err.find(" rank 1/") == std::string::npos);
    CHECK(result.out.empty());
  }
}

}  // namespace

TEST_CASE("hello_unit learns to count on one rank and on three") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const ProcessResult result = run_ranks_of(HELLO_UNIT, ranks, {});
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    CHECK(result.out.find("tokens") != std::string::npos);  // the program's table of units
    CHECK(last_loss(result.out) < 0.1);
  }
}

TEST_CASE("its flags reach the engine") {
  const ProcessResult whole =
      run_ranks_of(HELLO_UNIT, 2, {"--device", "cpu", "--strategy", "replicate"});
  INFO(whole.out << whole.err);
  REQUIRE(whole.code == 0);
  CHECK(whole.err.empty());
  CHECK(last_loss(whole.out) < 0.1);
  const auto slots_of = [](const std::string& out) {
    const size_t begin = out.find("parameter slots");
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  // If every rank holds all parameters, nothing is gathered.
  CHECK(slots_of(whole.out).find("KiB") == std::string::npos);
  const ProcessResult cut =
      run_ranks_of(HELLO_UNIT, 2, {"--device=cpu", "--map_shards", "false", "--prefetch=2"});
  CHECK(slots_of(cut.out).find("KiB") != std::string::npos);
}

TEST_CASE("a rank of several hosts without GPU or token is refused before it waits for others") {
  for (const char* device : {"auto", "cuda", "cpu"}) {
    CAPTURE(std::string(device));
    const ProcessResult result = run_process({HELLO_UNIT, "--device", device},
                                             {{"RANK", "1"},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", "0"},
                                              {"LOCAL_WORLD_SIZE", "1"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", "1"},
                                              {"CUDA_VISIBLE_DEVICES", "-1"}},
                                             std::chrono::seconds(60));
    INFO(result.err);
    CHECK(result.code == 78);
    CHECK(result.err.starts_with("fsdp: error[78] rank 1/2 host "));
    const bool needs_gpu = std::string_view(device) == "cuda";
    CHECK(result.err.find(needs_gpu ? "GPU" : "need a token") != std::string::npos);
    CHECK(result.err.find("rendezvous") == std::string::npos);
    CHECK(std::ranges::count(result.err, '\n') == 1);
  }
}

TEST_CASE("a wrong command line ends with 64 and what would be right") {
  check_refused({"--devise", "cpu"},
                "there is no flag --devise; hint: did you mean --device? --help lists the flags");
  check_refused({"--device", "gpu"}, "--device cannot be 'gpu'; hint: use auto, cpu or cuda");
  check_refused({"--trace", "t.json"}, "there is no flag --trace; hint: --help lists the flags");
  check_refused({"text.txt"}, "expected a flag, got 'text.txt'; hint: --help lists the flags");
}
