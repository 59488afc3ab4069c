// Filters the stderr of ranks, so that each error is shown once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A filter for the stderr of ranks. If error lines (docs/errors.md) differ only in rank and step,
// it shows the first of them and counts the others. It shows all other text when it arrives.
class ErrorLines {
 public:
  // If `all` is true, repeated errors are shown as well.
  explicit ErrorLines(bool all) : all_(all) {}

  // Adds the next bytes, which may end within a line. Returns the text to show now.
  std::string take(std::string_view bytes);
  // Returns the text to show after the last bytes. It contains an unfinished line and, for each
  // repeated error, a line such as "fsdp: note: 14 other ranks say the same as rank 3".
  std::string rest();

  // Returns true if a rank printed an error with this exit code.
  bool has_said(int code) const;

 private:
  struct Said {
    std::string text;  // code and text of the error, without rank and step
    std::string rank;  // the first rank that printed it
    int64_t others = 0;
  };

  bool is_repeated(std::string_view line);

  bool all_;
  std::string line_;     // beginning of a line that is not shown yet
  bool inside_ = false;  // true if the beginning of the current line was shown
  std::vector<Said> said_;
};

}  // namespace fsdp
