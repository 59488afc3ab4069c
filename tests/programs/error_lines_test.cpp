#include "programs/error_lines.h"

#include <doctest/doctest.h>

namespace fsdp {
namespace {

std::string said_by(int rank, const std::string& text) {
  return "fsdp: error[75] rank " + std::to_string(rank) + "/16 host h step 7: " + text + "\n";
}

TEST_CASE("what many ranks say is shown once, with a count at the end") {
  ErrorLines lines(/*all=*/false);
  std::string shown;
  for (int rank = 0; rank < 16; ++rank) {
    if (rank != 3) shown += lines.take(said_by(rank, "rank 3 was killed"));
  }
  CHECK(shown == said_by(0, "rank 3 was killed"));
  CHECK(lines.rest() == "fsdp: note: 14 other ranks say the same as rank 0\n");
}

TEST_CASE("errors that differ in more than rank and step are each shown") {
  ErrorLines lines(/*all=*/false);
  CHECK(lines.take(said_by(1, "a: b")) == said_by(1, "a: b"));
  CHECK(lines.take(said_by(2, "a: c")) == said_by(2, "a: c"));
  const std::string other_code = "fsdp: error[78] rank 4/16 host h: a: b\n";
  CHECK(lines.take(other_code) == other_code);
  CHECK(lines.take(said_by(5, "a: c")) == "");
  CHECK(lines.rest() == "fsdp: note: 1 other rank says the same as rank 2\n");
}

TEST_CASE("all else passes as it comes, also in pieces and without a line break") {
  ErrorLines lines(/*all=*/false);
  for (const char* text :
       {"working…", "\n\n", "fsdp: warning rank 0/2 host h: slow\n",
        "fsdp: warning rank 0/2 host h: slow\n", "fsdp: error[", "75] no rank\n", "\xff\x1b[1m"}) {
    CAPTURE(text);
    const std::string begin = "fsdp: error[";
    const std::string shown = lines.take(text);
    if (text == begin) {
      CHECK(shown == "");  // it may become an error line
    } else if (std::string(text).starts_with("75]")) {
      CHECK(shown == begin + text);
    } else {
      CHECK(shown == text);
    }
  }
  CHECK(lines.rest() == "");
}

TEST_CASE("an error in pieces is compared whole, and one without an end is shown at the end") {
  ErrorLines lines(/*all=*/false);
  CHECK(lines.take(said_by(0, "gone")) == said_by(0, "gone"));
  const std::string again = said_by(1, "gone"), cut = said_by(2, "cut").substr(0, 30);
  CHECK(lines.take(again.substr(0, 9)) == "");
  CHECK(lines.take(again.substr(9) + cut) == "");
  CHECK(lines.rest() == cut + "fsdp: note: 1 other rank says the same as rank 0\n");
}

TEST_CASE("where all are asked for every line is shown") {
  ErrorLines lines(/*all=*/true);
  CHECK(lines.take(said_by(0, "gone") + said_by(1, "gone")) ==
        said_by(0, "gone") + said_by(1, "gone"));
  CHECK(lines.rest() == "");
}

}  // namespace
}  // namespace fsdp
