// Tests docs/everyday.md. Its code must be part of two programs, and the programs must do what the
// page says.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/run_process.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"

using namespace fsdp::testing;

namespace {

using Lines = std::vector<std::string>;

// Returns the lines without their indentation.
Lines lines_of(const std::string& text) {
  std::istringstream stream(text);
  Lines lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line.substr(std::min(line.size(), line.find_first_not_of(' '))));
  }
  return lines;
}

std::vector<Lines> code_blocks(const std::string& page) {
  const std::string fence = "\n```cpp\n";
  std::vector<Lines> blocks;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    blocks.push_back(lines_of(page.substr(at, page.find("```", at) - at)));
  }
  return blocks;
}

}  // namespace

TEST_CASE("every block of docs/everyday.md is a run of lines of its programs") {
  const Lines program =
      lines_of(fsdp::read_text(fsdp::source_file("tests/examples/everyday_program.cpp")) +
               fsdp::read_text(fsdp::source_file("tests/examples/everyday.cpp")));
  const std::vector<Lines> blocks =
      code_blocks(fsdp::read_text(fsdp::source_file("docs/everyday.md")));
  CHECK(blocks.size() == 20);
  for (const Lines& block : blocks) {
    CAPTURE(block.front());
    CHECK(std::search(program.begin(), program.end(), block.begin(), block.end()) != program.end());
  }
}

TEST_CASE("the program of docs/everyday.md learns, evaluates, saves and loads on two ranks") {
  const fsdp::ScratchFolder folder;
  Lines command{FSDP_RUN,       "-n",  "2",          EVERYDAY,
                "--device",     "cpu", "--save-dir", (folder / "checkpoints").string(),
                "--save-steps", "9"};
  const ProcessResult result = run_process(command, {{"EVERYDAY_FOLDER", folder.path().string()}},
                                           std::chrono::seconds(300));
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.starts_with("fsdp: note: a checkpoint takes "));
  CHECK(std::ranges::count(result.err, '\n') == 1);
  CHECK(std::stod(result.out.substr(result.out.rfind("accuracy ") + 9)) > 0.9);
  CHECK(folder.names() == Lines{"checkpoints", "model.pt", "model.safetensors"});
  const std::string best = result.out.substr(result.out.rfind("best loss "));
  command.insert(command.end(), {"--resume", "auto"});
  const ProcessResult resumed = run_process(command, {}, std::chrono::seconds(300));
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
  CHECK(resumed.err.find("resumed from step 18 ") != std::string::npos);
  CHECK(resumed.out.ends_with(best));
}

TEST_CASE("the complete program of docs/everyday.md runs on one rank and on two") {
  for (const char* ranks : {"1", "2"}) {
    const ProcessResult result =
        run_process({FSDP_RUN, "-n", ranks, EVERYDAY_PROGRAM, "--device", "cpu"}, {},
                    std::chrono::seconds(300));
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    CHECK(result.err.empty());
    CHECK(result.out.find("step 100 loss ") != std::string::npos);
  }
}

TEST_CASE("with a plain main it runs alone") {
  const ProcessResult result =
      run_process({EVERYDAY}, {{"EVERYDAY_PLAIN", "1"}}, std::chrono::seconds(300));
  INFO(result.out << result.err);
  CHECK(result.code == 0);
}
