#include "fsdp/status_line.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "support/pseudo_terminal.h"

using namespace fsdp;

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
