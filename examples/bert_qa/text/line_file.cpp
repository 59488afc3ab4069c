#include "bert_qa/text/line_file.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>
#include <fsdp/whole_file.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace bert_qa {
namespace {

constexpr size_t kBlockBytes = 1 << 18;

gzFile handle_of(void* file) { return static_cast<gzFile>(file); }

}  // namespace

void LineFile::CloseGzip::operator()(void* file) const { gzclose(handle_of(file)); }

LineFile::LineFile(const std::filesystem::path& path) : path_(path), block_(kBlockBytes) {
  fsdp::require_readable(path);
  file_.reset(gzopen(path.c_str(), "rb"));
  if (!file_) {
    throw fsdp::IoError(fsdp::ExitCode::kIoError,
                        {.what = "cannot read the file",
                         .where = path.string(),
                         .cause = std::generic_category().message(errno)});
  }
  gzbuffer(handle_of(file_.get()), kBlockBytes);
}

void LineFile::refuse(std::string what, std::string cause) const {
  throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                      {.what = std::move(what),
                       .where = fmt::format("{}, line {}", path_.string(), number_ + 1),
                       .cause = std::move(cause)});
}

// Returns false at the end of the file.
bool LineFile::read_block() {
  const int got = gzread(handle_of(file_.get()), block_.data(), kBlockBytes);
  int error = Z_OK;
  const char* text = gzerror(handle_of(file_.get()), &error);
  if (error == Z_ERRNO) {
    throw fsdp::IoError(fsdp::ExitCode::kIoError,
                        {.what = "cannot read the file",
                         .where = path_.string(),
                         .cause = std::generic_category().message(errno)});
  }
  if (error == Z_BUF_ERROR) refuse("the gzip file is cut off", "it ends inside compressed data");
  if (got < 0 || error != Z_OK) {
    refuse("the gzip file is damaged", fsdp::printable(text));
  }
  at_ = 0;
  end_ = static_cast<size_t>(got);
  return got > 0;
}

bool LineFile::next(std::string_view& line) {
  long_line_.clear();
  for (bool begins = true;; begins = false) {
    if (at_ == end_ && !read_block()) {
      if (begins || long_line_.empty()) return false;
      break;  // the last line has no end
    }
    const char* from = block_.data() + at_;
    const auto* end = static_cast<const char*>(std::memchr(from, '\n', end_ - at_));
    const size_t bytes = end != nullptr ? end - from : end_ - at_;
    at_ += bytes + (end != nullptr ? 1 : 0);
    if (begins && end != nullptr) {
      ++number_;
      line = {from, bytes};
      return true;
    }
    if (static_cast<int64_t>(long_line_.size() + bytes) > kMaxLineBytes) {
      refuse("the line is too long", fmt::format("more than {} bytes", kMaxLineBytes));
    }
    long_line_.append(from, bytes);
    if (end != nullptr) break;
  }
  ++number_;
  line = long_line_;
  return true;
}

}  // namespace bert_qa
