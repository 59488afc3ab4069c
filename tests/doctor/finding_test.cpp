#include "programs/doctor/finding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace fsdp::doctor {
namespace {

// Returns the length of the longest line, in characters.
size_t columns_of_text(const std::string& text) {
  size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
    most = std::max(most, static_cast<size_t>(std::ranges::count_if(line, begins)));
  }
  return most;
}

TEST_CASE("a finding is a line, its remedy another one below the text") {
  const std::string text = format_findings(
      {{.area = "driver", .text = "580.65.06"},
       {.area = "limits", .state = State::kNote, .text = "few", .remedy = "ulimit -n 65536"},
       {.area = "cuda:0", .state = State::kFails, .text = "lost", .remedy = "reboot"}});
  CHECK(text ==
        "driver         ok     580.65.06\n"
        "limits         note   few\n"
        "                      remedy: ulimit -n 65536\n"
        "cuda:0         fails  lost\n"
        "                      remedy: reboot\n");
}

TEST_CASE("what is longer than a line goes on below its text, between words") {
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  const std::string text = format_findings({{.area = "peers", .text = words}});
  CHECK(text.starts_with("peers          ok     word word"));
  CHECK(text.find("word\n                      word") != std::string::npos);
  CHECK(std::ranges::count(text, '\n') == 3);
  // A line has 78 columns of text. They hold fifteen words of four letters and the blanks between
  // them.
  CHECK(columns_of_text(text) == 22 + 15 * 5 - 1);
}

TEST_CASE("a word that no line could hold is cut, and no character of it") {
  for (size_t before = 0; before < 4; ++before) {
    std::string word(before, 'x');
    for (int i = 0; i < 300; ++i) word += "é";
    const std::string text = format_findings(
        {{.area = "environment", .state = State::kNote, .text = "a " + word, .remedy = word}});
    CAPTURE(text);
    CHECK(columns_of_text(text) == 100);
    CHECK(text.find("\\x") == std::string::npos);
    CHECK(std::ranges::count(text, '\xc3') == 600);
  }
}

TEST_CASE("a finding without a text is a line all the same") {
  const std::string text = format_findings({{.area = "a"}, {.area = "b", .text = "more"}});
  CHECK(text == "a              ok     \nb              ok     more\n");
}

TEST_CASE("a line is filled up to its last column") {
  const std::string fits(78, 'x');
  CHECK(format_findings({{.area = "a", .text = fits}}) == "a              ok     " + fits + "\n");
  const std::string text = format_findings({{.area = "a", .text = "y " + fits}});
  CHECK(text == "a              ok     y\n                      " + fits + "\n");
}

TEST_CASE("control characters are shown, not sent to the terminal") {
  const std::string text = format_findings({{.area = "environment",
                                             .state = State::kNote,
                                             .text = "X=\x1b[31m\nfails",
                                             .remedy = "un\rset\xff"}});
  CHECK(text ==
        "environment    note   X=\\x1b[31m\\x0afails\n"
        "                      remedy: un\\x0dset\\xff\n");
}

}  // namespace
}  // namespace fsdp::doctor
