#include "io/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr int64_t kHolderBytes = 128;

std::string system_text(int error) { return std::generic_category().message(error); }

// Returns "pid 17 on host h". A process that finds the folder locked shows this text in its error.
std::string this_process() {
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("pid {} on host {}", ::getpid(), host.data());
}

std::string holder_of(int fd) {
  std::array<char, kHolderBytes> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  std::string holder(text.data(), got > 0 ? got : 0);
  holder.resize(std::min(holder.find('\n'), holder.size()));
  return holder.empty() ? "another process" : printable(holder);
}

// Returns true if `path` still names the opened file. A previous holder removes the file when it
// unlocks. A lock on a removed file would not exclude other processes.
bool still_named(int fd, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

[[noreturn]] void cannot_make(const std::filesystem::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw IoError(full ? ExitCode::kIoError : ExitCode::kCannotCreate,
                {.what = "the folder's lock file cannot be created",
                 .where = path.string(),
                 .cause = system_text(error),
                 .hint = full ? "free some space" : "choose a writable folder"});
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& name)
    : path_(folder / name) {
  for (;;) {
    // O_NOFOLLOW: a link in the folder must not redirect the write of the holder's name.
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0) cannot_make(path_, errno);
    const int error = ::flock(fd_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error == EWOULDBLOCK) {
      const std::string holder = holder_of(fd_);
      ::close(std::exchange(fd_, -1));
      throw IoError(ExitCode::kCannotCreate,
                    {.what = "another run writes into the folder",
                     .where = folder.string(),
                     .cause = fmt::format("{} holds the lock file {}", holder, name),
                     .hint = "wait until that run ends, or choose another folder"});
    }
    if (error != 0) {
      note_ = fmt::format("{} cannot be locked ({}): make sure that no other run writes there",
                          folder.string(), system_text(error));
      ::unlink(path_.c_str());
      ::close(std::exchange(fd_, -1));
      return;
    }
    // If the path no longer names the file, the previous holder removed the file between open and
    // flock: try again.
    if (still_named(fd_, path_)) break;
    ::close(std::exchange(fd_, -1));
  }
  const std::string holder = this_process() + '\n';
  // The text only names the holder to users, so errors of these calls are ignored.
  [[maybe_unused]] const int cut = ::ftruncate(fd_, 0);
  [[maybe_unused]] const ssize_t written = ::pwrite(fd_, holder.data(), holder.size(), 0);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      note_(std::move(other.note_)) {}

FolderLock::~FolderLock() {
  if (fd_ < 0) return;
  // The file is removed while it is still locked, so that this call cannot remove the file of the
  // next holder.
  if (still_named(fd_, path_)) ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace fsdp
