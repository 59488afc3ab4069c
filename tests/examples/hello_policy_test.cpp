// Runs the second program of the README. It shards an unchanged model of another library.
#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "support/run_program.h"

using namespace fsdp::testing;

TEST_CASE("hello_policy learns on one rank and on three, and says which module became which unit") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const ProcessResult result = run_ranks_of(HELLO_POLICY, ranks, {});
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    CHECK(result.out.find("encoder.layers.1") != std::string::npos);
    CHECK(result.out.find("torch::nn::TransformerDecoderLayerImpl") != std::string::npos);
    const auto loss_of = [&](const std::string& step) {
      return std::stod(result.out.substr(result.out.find(step + " loss ") + step.size() + 6));
    };
    CHECK(loss_of("step 60") < 0.8 * loss_of("step 1"));
  }
}

TEST_CASE("hello_policy refuses to be recomputed by units, and says what to do") {
  const ProcessResult result = run_ranks_of(HELLO_POLICY, 2, {"--recompute", "1"});
  INFO(result.out << result.err);
  CHECK(result.code == 78);
  CHECK(result.err.find("was chosen by Options::units and cannot be recomputed") !=
        std::string::npos);
  CHECK(result.err.find("fsdp::recompute") != std::string::npos);
}
