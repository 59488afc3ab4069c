#include "terminal/status_line.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/pseudo_terminal.h"

using namespace terminal;

namespace {

std::string written_by(const std::function<void(std::FILE*)>& write) {
  std::FILE* file = std::tmpfile();
  write(file);
  std::string text(std::ftell(file), '\0');
  std::rewind(file);
  REQUIRE(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("a log gets whole lines: the first, every so many, and the last") {
  const std::string text = written_by([](std::FILE* file) {
    StatusLine status(file, "step", 25, 10);
    for (int step = 1; step <= 25; ++step) status.update(step, "loss 1.0");
  });
  CHECK(text ==
        "step  1/25  loss 1.0  0:00 left\nstep 10/25  loss 1.0  0:00 left\n"
        "step 20/25  loss 1.0  0:00 left\nstep 25/25  loss 1.0  0:00 left\n");
}

TEST_CASE("a run that resumes shows its own first line and the time of its own steps") {
  const std::string text = written_by([](std::FILE* file) {
    StatusLine status(file, "step", 1'000'010, 1'000'000, /*begin=*/10);
    usleep(20'000);
    status.update(11, "loss 1.0");
  });
  CHECK(text.starts_with("step      11/1000010  loss 1.0  "));
  // A step took 20 ms or more, so a million steps take five hours or more ("5:33:20 left"). With
  // the steps before the resume it would be half an hour.
  CHECK(std::ranges::count(text, ':') == 2);
}

TEST_CASE("a note is a line of its own") {
  const std::string text = written_by([](std::FILE* file) {
    StatusLine status(file, "step", 25, 10);
    status.update(1, "loss 1.0");
    status.note("step 1 was skipped");
  });
  CHECK(text == "step  1/25  loss 1.0  0:00 left\nstep 1 was skipped\n");
}

TEST_CASE("on a terminal the line is never wider than it: parts of the details go first") {
  const auto drawn = [](int columns) {
    const fsdp::testing::PseudoTerminal terminal(columns);
    std::FILE* file = fdopen(dup(terminal.slave()), "w");
    StatusLine(file, "step", 25, 10).update(25, "loss 1.2345  12.3 samples/s");
    std::fclose(file);
    return terminal.read_all();
  };
  CHECK(drawn(80) == "\rstep 25/25  loss 1.2345  12.3 samples/s  0:00 left\x1b[K\r\n");
  CHECK(drawn(51) == drawn(80));
  CHECK(drawn(50) == "\rstep 25/25  loss 1.2345  0:00 left\x1b[K\r\n");
  CHECK(drawn(40) == drawn(50));
  CHECK(drawn(30) == "\rstep 25/25  0:00 left\x1b[K\r\n");
  CHECK(drawn(20) == "\rstep 25/25  0:00 le\x1b[K\r\n");
}

namespace {

// Returns a number in the last line of a log: 1.2345 for "loss 1.2345".
double shown(const std::string& text, const std::string& before, const std::string& after) {
  const std::string line = text.substr(text.rfind("step "));
  const size_t begin = line.find(before) + before.size();
  return std::stod(line.substr(begin, line.find(after, begin) - begin));
}

std::string lines_of(const std::vector<double>& losses, int64_t samples = 8) {
  return written_by([&](std::FILE* file) {
    const auto steps = static_cast<int64_t>(losses.size());
    StatusLine status(file, "step", steps, 1);
    for (int64_t step = 1; step <= steps; ++step) {
      status.update(step, {.epoch = 0.25 * static_cast<double>(step),
                           .loss = losses[step - 1],
                           .learning_rate = 5e-5,
                           .samples = samples});
    }
  });
}

}  // namespace

TEST_CASE("a step of training is its epoch, loss, learning rate and samples a second") {
  const std::string text = lines_of({2.5, 2.5});
  CHECK(text.starts_with("step 1/2  loss 2.5000  epoch 0.25  lr 5.00e-05  "));
  CHECK(text.find("step 2/2  loss 2.5000  epoch 0.50  lr 5.00e-05  ") != std::string::npos);
  CHECK(text.ends_with(" samples/s  0:00 left\n"));
  CHECK(shown(text, "5.00e-05  ", " samples/s") > 0);
}

TEST_CASE("the loss shown is a mean in which later steps weigh more") {
  const auto loss = [](const std::vector<double>& losses) {
    return shown(lines_of(losses), "loss ", "  lr");
  };
  CHECK(loss({4}) == 4);
  CHECK(loss({4, 2}) == doctest::Approx((0.9 * 4 + 2) / 1.9).epsilon(1e-4));
  std::vector<double> noisy(100, 1.0);
  for (size_t i = 0; i < noisy.size(); i += 2) noisy[i] = 3.0;
  CHECK(loss(noisy) == doctest::Approx(2.0).epsilon(0.05));  // the losses alternate between 1 and 3
}

TEST_CASE("a loss that is not finite is shown, and not kept") {
  const std::string text = lines_of({4, std::numeric_limits<double>::quiet_NaN(), 4});
  CHECK(text.find("step 2/3  loss nan  epoch 0.50  lr") != std::string::npos);
  CHECK(text.find("step 3/3  loss 4.0000  epoch 0.75  lr") != std::string::npos);
}

TEST_CASE("ranks that do not speak write nothing") {
  StatusLine status(nullptr, "step", 1, 1);
  status.update(1, "loss");
  status.interrupt("table");
  status.note("note");
}

TEST_CASE("durations read as a clock") {
  CHECK(clock_text(-1) == "0:00");
  CHECK(clock_text(59.6) == "1:00");
  CHECK(clock_text(247) == "4:07");
  CHECK(clock_text(3723) == "1:02:03");
}
