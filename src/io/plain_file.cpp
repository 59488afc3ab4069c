#include "io/plain_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fsdp/error.h"
#include "io/file_failure.h"

namespace fsdp {

bool is_plain_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  // Longer names are refused, because file systems limit a name to 255 bytes.
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::ranges::all_of(name, allowed);
}

MappedFile map_plain_file(const std::filesystem::path& path) {
  struct stat status {};
  const int error = ::lstat(path.c_str(), &status) == 0 ? 0 : errno;
  if (error != 0 && error != ENOENT) {
    fail_file(ExitCode::kIoError, "cannot read the file", path.string(), error);
  }
  if (error == 0 && S_ISREG(status.st_mode)) return MappedFile(path);
  const char* found = error != 0                ? "missing"
                      : S_ISLNK(status.st_mode) ? "a link"
                      : S_ISDIR(status.st_mode) ? "a folder"
                                                : "not a regular file";
  throw IoError(
      ExitCode::kCorruptData,
      {.what = fmt::format("{} is {}", path.filename().string(), found),
       .where = path.string(),
       .hint = error != 0 ? "load an earlier checkpoint" : "copy the file itself into the folder"});
}

}  // namespace fsdp
