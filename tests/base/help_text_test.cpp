#include <doctest/doctest.h>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("lines are broken between words, and within those that no line could hold") {
  CHECK(wrapped("", 5) == Lines{""});
  CHECK(wrapped("one two three", 7) == Lines{"one two", "three"});
  CHECK(wrapped("a longest b", 4) == Lines{"a", "long", "est", "b"});
  CHECK(wrapped("äöü äöü", 3) == Lines{"äöü", "äöü"});
}

TEST_CASE("a flag's meaning stands beside it, and below itself within 80 columns") {
  CHECK(help_row("--prefetch N", "units gathered ahead [1]") ==
        "  --prefetch N                  units gathered ahead [1]\n");
  CHECK(help_row("--a-name-of-29-letters-exactly", "x") ==
        "  --a-name-of-29-letters-exactly\n                                x\n");
  CHECK(help_row("--offload BOOL",
                 "true: main shards, gradients, optimizer state on the host [false]") ==
        "  --offload BOOL                true: main shards, gradients, optimizer state on\n"
        "                                the host [false]\n");
}

}  // namespace
}  // namespace fsdp
