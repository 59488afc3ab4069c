// What ranks write to stderr, each error once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Of error lines (docs/errors.md) that differ in rank and step alone the first is shown, and the
// others are counted. All else is shown as it arrives.
class ErrorLines {
 public:
  // `all`: every line is shown.
  explicit ErrorLines(bool all) : all_(all) {}

  // Takes the next bytes, of lines or of pieces of them; returns what is to be shown now.
  std::string take(std::string_view bytes);
  // At the end: a line that nobody finished, and a line a repeated error: "fsdp: note: 14 other
  // ranks say the same as rank 3".
  std::string rest();

  // Some rank has said an error with this exit code.
  bool has_said(int code) const;

 private:
  struct Said {
    std::string text;  // code and text, without rank and step
    std::string rank;  // that said it first
    int64_t others = 0;
  };

  bool is_repeated(std::string_view line);

  bool all_;
  std::string line_;     // the beginning of one, not shown yet
  bool inside_ = false;  // of a line whose beginning was shown
  std::vector<Said> said_;
};

}  // namespace fsdp
