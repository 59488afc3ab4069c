// Tests properties that all findings have, on machines with several faults at once.
#include "programs/doctor/judge.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "doctor/support/machines.h"

namespace fsdp::testing {
namespace {

using doctor::Facts;
using doctor::Finding;
using doctor::State;
using doctor::TaskEnd;

std::string long_text(std::mt19937& random) {
  std::string text;
  for (unsigned words = random() % 40; words > 0; --words) {
    text += std::string(random() % 30, static_cast<char>(random() % 256)) + ' ';
  }
  return text;
}

ErrorText any_error(std::mt19937& random) {
  return {.what = "what " + long_text(random),
          .where = long_text(random),
          .hint = random() % 2 == 0 ? "" : "hint"};
}

Facts any_machine(std::mt19937& random) {
  const auto sometimes = [&] { return random() % 3 == 0; };
  Facts facts = sound_machine(static_cast<int>(random() % 9));
  if (facts.cuda.gpus.empty()) facts.cuda.why_none = "why " + long_text(random);
  if (sometimes()) facts.host.driver_module.clear();
  if (sometimes()) facts.host.shared_folder.why_none = long_text(random);
  if (sometimes()) facts.host.job_memory_refusal = any_error(random);
  if (sometimes()) facts.host.limits = {.locked_bytes = 1, .open_files = 2, .address_bytes = 4};
  if (sometimes()) facts.versions.torch_loaded = long_text(random);
  if (sometimes()) facts.host.variables.push_back({"CUDA_LAUNCH_BLOCKING", "1"});
  if (sometimes()) facts.host.variables.push_back({"NCCL_X", long_text(random)});
  if (sometimes()) facts.host.variables.push_back({"OMP_NUM_THREADS", long_text(random)});
  for (auto& gpu : facts.cuda.gpus) {
    if (sometimes()) gpu.refusal = any_error(random);
    if (sometimes()) gpu.device.name = long_text(random);
    facts.cuda.reaches.front()[static_cast<size_t>(gpu.ordinal)] = sometimes();
  }
  if (sometimes()) facts.cuda.nccl.refusal = any_error(random);
  if (sometimes()) facts.cuda.asked = {.how = TaskEnd::How::kStuck, .failure = any_error(random)};
  if (facts.cuda.asked.how != TaskEnd::How::kDone) facts.cuda.gpus.clear();
  if (sometimes())
    facts.loopback.end = {.how = TaskEnd::How::kFailed, .failure = any_error(random)};
  if (!doctor::why_no_loopback(facts.cuda).empty()) facts.loopback = {};
  return facts;
}

bool is_fit_for_a_terminal(const std::string& text) {
  for (const char c : text) {
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) return false;
  }
  return true;
}

size_t longest_line(const std::string& text) {
  size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
    most = std::max(most, static_cast<size_t>(std::ranges::count_if(line, begins)));
  }
  return most;
}

TEST_CASE("whatever a machine is like, lines are short, and what is not fine has a remedy") {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    const Facts facts = any_machine(random);
    for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kAuto, DeviceKind::kCpu}) {
      const std::vector<Finding> findings = judge(facts, device);
      for (const Finding& finding : findings) {
        CAPTURE(finding.text);
        CHECK((finding.state == State::kOk) == finding.remedy.empty());
        CHECK(!finding.text.empty());
        CHECK(finding.area.size() < 15);
      }
      const std::string text = format_findings(findings);
      CHECK(longest_line(text) <= 100);
      CHECK(is_fit_for_a_terminal(text));
    }
  }
}

TEST_CASE("the code is 78 without a GPU, 1 where something fails, and 0 else") {
  std::mt19937 random(8);
  std::map<int, int> seen;
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    const Facts facts = any_machine(random);
    const auto fails = [&](DeviceKind device) {
      return std::ranges::count(judge(facts, device), State::kFails, &Finding::state);
    };
    const bool has_gpu = !doctor::why_no_gpu(facts.cuda);
    const int code = code_of(facts, DeviceKind::kCuda);
    CHECK(code == (!has_gpu ? 78 : fails(DeviceKind::kCuda) > 0 ? 1 : 0));
    CHECK(code_of(facts, DeviceKind::kAuto) == (fails(DeviceKind::kAuto) > 0 ? 1 : 0));
    CHECK(code_of(facts, DeviceKind::kCpu) == (fails(DeviceKind::kCpu) > 0 ? 1 : 0));
    ++seen[code];
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("how many findings fail is told") {
  Facts facts = sound_machine(2);
  facts.versions.torch_loaded = "1.0.0";
  const auto line_of = [&] {
    return verdict_of(facts, DeviceKind::kCuda, judge(facts, DeviceKind::kCuda)).line;
  };
  CHECK(line_of() == "one finding makes runs fail");
  facts.loopback.end = {.how = TaskEnd::How::kFailed, .failure = {.what = "lost"}};
  CHECK(line_of() == "2 findings make runs fail");
}

}  // namespace
}  // namespace fsdp::testing
