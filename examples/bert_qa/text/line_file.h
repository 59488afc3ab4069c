// Reads the lines of a text file, which may be compressed with gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// A file that is read line by line. It holds one line and a block of the file in memory. The
// content decides whether the file is compressed, not the name. Several gzip files that were
// concatenated count as one file.
class LineFile {
 public:
  // The longest line that next() accepts.
  static constexpr int64_t kMaxLineBytes = 256 << 20;

  // Errors: those of fsdp::require_readable.
  explicit LineFile(const std::filesystem::path& path);

  // Sets `line` to the next line without its end, and returns false at the end of the file. The
  // view is valid until the next call.
  // Errors: IoError kCorruptData, which names the line, if the compressed data is damaged or cut
  //   off, or if a line is too long. IoError kIoError if reading fails.
  bool next(std::string_view& line);
  // Returns the number of the last line, counted from 1.
  int64_t number() const { return number_; }

 private:
  struct CloseGzip {
    void operator()(void* file) const;
  };

  bool read_block();
  [[noreturn]] void refuse(std::string what, std::string cause) const;

  std::filesystem::path path_;
  std::unique_ptr<void, CloseGzip> file_;
  std::vector<char> block_;
  size_t at_ = 0, end_ = 0;  // unread bytes of the block
  std::string long_line_;    // a line that continues in another block
  int64_t number_ = 0;
};

}  // namespace bert_qa
