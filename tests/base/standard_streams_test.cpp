#include "base/standard_streams.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "support/pseudo_terminal.h"

using namespace fsdp;

namespace {

using Rows = std::vector<std::string>;

// Returns the rows of a terminal that showed `before` when an error line was written.
Rows rows_after(std::string_view before, int columns) {
  const testing::PseudoTerminal terminal(columns);
  REQUIRE(::write(terminal.slave(), before.data(), before.size()) == std::ssize(before));
  const int stderr_before = dup(STDERR_FILENO);
  dup2(terminal.slave(), STDERR_FILENO);
  write_error_line("fsdp: error");
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  return testing::rows_of(terminal.read_all(), columns == 0 ? 80 : columns);
}

}  // namespace

TEST_CASE("an error begins in a row of its own, whatever stands on the terminal") {
  for (const int columns : {12, 20, 80, 121}) {
    CAPTURE(columns);
    CHECK(rows_after("", columns) == Rows{"fsdp: error", ""});
    CHECK(rows_after("a whole\n", columns) == Rows{"a whole", "fsdp: error", ""});
    CHECK(rows_after("\rstep 7/9\x1b[K", columns) == Rows{"step 7/9", "fsdp: error", ""});
    // A status line uses all columns except the last one. ^C may use the last one too.
    const std::string almost(columns - 1, 'x'), full(columns, 'x');
    CHECK(rows_after(almost, columns) == Rows{almost, "fsdp: error", ""});
    CHECK(rows_after(full, columns) == Rows{full, "fsdp: error", ""});
  }
}

TEST_CASE("on a terminal that does not say how wide it is an error follows a line break") {
  CHECK(rows_after("step 7/9", 0) == Rows{"step 7/9", "fsdp: error", ""});
  CHECK(rows_after("", 0) == Rows{"", "fsdp: error", ""});
}

TEST_CASE("only a terminal has rows") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  CHECK(fresh_row(ends[1]).empty());
  CHECK(fresh_row(-1).empty());
  for (const int end : ends) close(end);
}
