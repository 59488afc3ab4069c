// Runs fsdp-rates as a user does, and plans with the rates that it prints.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "support/run_program.h"
#include "support/scratch_folder.h"

using namespace fsdp::testing;

namespace {

ProcessResult rates(const Words& arguments) {
  Words command{FSDP_RATES};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, {}, std::chrono::seconds(300));
}

void check_refusal(const Words& arguments, std::string_view text) {
  const ProcessResult result = rates(arguments);
  INFO(result.out << result.err);
  CHECK(result.code == 64);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("fsdp: error[64] "));
  CHECK(result.err.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("fsdp-plan reads the rates that two ranks measured, with the operators of the model") {
  const ProcessResult measured = rates({"--ranks", "2", "--threads", "1", "--seconds", "0.2",
                                        "--model", "gpt-tiny", "--batch", "2"});
  INFO(measured.err);
  REQUIRE(measured.code == 0);
  const fsdp::ScratchFolder folder;
  const std::filesystem::path file = folder.write("rates.json", measured.out);
  const auto plan = [&](const std::string& batch) {
    const ProcessResult planned = run_process({FSDP_PLAN, "--model", "gpt-tiny", "--ranks", "2",
                                               "--batch", batch, "--time", file.string()},
                                              {}, std::chrono::seconds(60));
    INFO(planned.out << planned.err);
    CHECK(planned.code == 0);
    std::string text = planned.out;
    std::ranges::replace(text, '\n', ' ');  // the basis takes several lines
    return text;
  };
  const std::string same = plan("2");
  CHECK(same.find("measured (ranks at the same time: 2, threads of each: 1)") != std::string::npos);
  CHECK(same.find("(100 %) measured, 0 (0 %) by operations") != std::string::npos);
  // Most operators of another batch have other shapes.
  CHECK(plan("4").find(", 0 (0 %) by operations") == std::string::npos);
}

TEST_CASE("fsdp-rates explains its flags and refuses others with 64") {
  const ProcessResult help = rates({"--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("--ranks") != std::string::npos);
  check_refusal({"--rank", "2"}, "--rank");
  check_refusal({"--ranks", "0"}, "--ranks");
  check_refusal({"--param-dtype", "int8"}, "--param-dtype cannot be 'int8'");
  check_refusal({"--device", "tpu"}, "--device cannot be 'tpu'");
  check_refusal({"--batch", "2"}, "need a model");
  check_refusal({"--model", "gpt-tinny"}, "did you mean gpt-tiny?");
}
