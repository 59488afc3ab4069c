#include "io/file_failure.h"

#include <cerrno>
#include <system_error>

namespace fsdp {
namespace {

// Returns true if the disk itself is full or fails. Such an error is reported as kIoError, and any
// other, such as a missing folder, as kCannotCreate.
bool is_device_failure(int error) {
  return error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG || error == ENOMEM;
}

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space; no existing file was changed";
    case EFBIG:
      return "raise the file size limit (ulimit -f); no existing file was changed";
    case ENOENT:
    case ENOTDIR:
      return "create the folder first";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a writable folder";
    default:
      return {};
  }
}

}  // namespace

std::string system_cause(int error) { return std::generic_category().message(error); }

void fail_file(ExitCode code, std::string what, std::string where, int error) {
  throw IoError(code, {.what = std::move(what),
                       .where = std::move(where),
                       .cause = system_cause(error),
                       .hint = hint_for(error)});
}

void cannot_create(const std::filesystem::path& path, int error, std::string what) {
  const auto code = is_device_failure(error) ? ExitCode::kIoError : ExitCode::kCannotCreate;
  fail_file(code, std::move(what), path.string(), error);
}

}  // namespace fsdp
