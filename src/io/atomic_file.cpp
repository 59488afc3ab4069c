#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/whole_file.h"
#include "io/file_failure.h"

namespace fsdp {
namespace {

// Several names are tried, because dead processes that had this process id may have left files with
// some of the names.
constexpr int kMaxNames = 1000;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Syncs a folder, so that a new name survives a crash. fsync of the file does not cover the
// folder's entry.
void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_file(ExitCode::kIoError, "cannot open the folder to sync it", folder, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL means that the file system cannot sync folders, so nothing more can be done.
  if (error != 0 && error != EINVAL) {
    fail_file(ExitCode::kIoError, "cannot sync the folder", folder, error);
  }
}

// Returns ".NAME.tmp.". Temporary files are named ".NAME.tmp.PID.I".
std::string temporary_prefix(std::string_view name) { return fmt::format(".{}.tmp.", name); }

// Returns NAME from the name of a temporary file, or an empty text for any other name.
std::string_view target_of(std::string_view temporary) {
  const auto cut_number = [&] {
    const size_t dot = temporary.rfind('.');
    if (dot == temporary.npos || dot + 1 == temporary.size()) return false;
    if (temporary.find_first_not_of("0123456789", dot + 1) != temporary.npos) return false;
    temporary = temporary.substr(0, dot);
    return true;
  };
  constexpr std::string_view kEnd = ".tmp";
  if (!temporary.starts_with('.') || !cut_number() || !cut_number()) return {};
  if (!temporary.ends_with(kEnd)) return {};
  return temporary.substr(1, temporary.size() - 1 - std::min(temporary.size() - 1, kEnd.size()));
}

// Locks a temporary file for its writer. Returns false if remove_leftovers locked or unlinked the
// file between its creation and this call. Returns true on a file system without locks, because
// remove_leftovers then removes nothing.
bool hold(int fd) {
  struct stat status {};
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  return ::fstat(fd, &status) != 0 || status.st_nlink > 0;
}

// Removes a temporary file if no living process holds its lock.
bool remove_if_dead(const std::filesystem::path& path) {
  // The file is opened for writing, because network file systems lock only such files. The flags
  // make open() fail for a symbolic link and not block on a pipe.
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat opened {
  }, named{};
  // After the file was opened, another file may have been renamed to this path, so device and inode
  // are compared.
  const bool dead = ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &opened) == 0 &&
                    ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
                    opened.st_ino == named.st_ino && S_ISREG(opened.st_mode);
  const bool removed = dead && ::unlink(path.c_str()) == 0;
  ::close(fd);
  return removed;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  // A folder is refused now, because rename would refuse it only after all data is written.
  if (!path_.has_filename()) cannot_create(path_, EISDIR);
  if (std::filesystem::is_directory(path_, ignored)) cannot_create(path_, EISDIR);
  // The file is in the same folder as its target, because rename works only within one file system.
  // O_EXCL never opens a file of another writer.
  for (int i = 0; i < kMaxNames; ++i) {
    std::filesystem::path name =
        folder_of(path_) /
        fmt::format("{}{}.{}", temporary_prefix(path_.filename().string()), ::getpid(), i);
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 && hold(fd_)) {
      temporary_ = std::move(name);
      return;
    }
    if (fd_ >= 0) {
      // remove_leftovers has removed the name of this file, so the next name is tried.
      ::close(std::exchange(fd_, -1));
    } else if (errno != EEXIST) {
      break;
    }
  }
  cannot_create(path_, errno);
}

AtomicFile::~AtomicFile() {
  // An uncommitted file is unlinked. If unlink fails, remove_leftovers removes the file later.
  if (fd_ >= 0) ::close(fd_);
  if (lock_ >= 0) ::close(lock_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::swap(AtomicFile& other) noexcept {
  path_.swap(other.path_);
  temporary_.swap(other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(lock_, other.lock_);
  std::swap(finished_, other.finished_);
}

void AtomicFile::write_at(int64_t offset_bytes, std::span<const std::byte> bytes) {
  if (fd_ < 0) {
    throw StateError({.what = "write_at() was called after finish()",
                      .where = path_.string(),
                      .hint = "write all bytes before finish(); report this as a bug if your "
                              "program does not call it"});
  }
  // pwrite may write fewer bytes than requested. The next iteration writes the rest or reports the
  // error.
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), offset_bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_file(ExitCode::kIoError, "cannot write the file",
                fmt::format("{}, byte {}", path_.string(), offset_bytes), errno);
    }
    offset_bytes += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::finish() {
  if (fd_ < 0) {
    throw StateError(
        {.what = "finish() was called twice for this file",
         .where = path_.string(),
         .hint =
             "call finish() once per file; report this as a bug if your program does not call it"});
  }
  // The content is synced before the rename. If the rename reached the disk first, a crash would
  // leave an empty file under the final name.
  if (::fsync(fd_) != 0) {
    fail_file(ExitCode::kIoError, "cannot sync the file", path_.string(), errno);
  }
  // A second descriptor of the open file shares its lock. This descriptor holds the lock until the
  // file has its final name.
  lock_ = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  // Network file systems report a full disk only on close, so the file is closed before the rename.
  const int error = ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
  if (error != 0) fail_file(ExitCode::kIoError, "cannot close the file", path_.string(), error);
  finished_ = true;
}

void AtomicFile::commit() {
  if (!finished_) finish();
  if (temporary_.empty()) {
    throw StateError(
        {.what = "commit() was called twice for this file",
         .where = path_.string(),
         .hint =
             "call commit() once per file; report this as a bug if your program does not call it"});
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot_create(path_, errno);
  // The file is renamed, so the destructor must not unlink it, even if the folder cannot be synced.
  temporary_.clear();
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
  sync_folder(folder_of(path_));
}

// Throws if no file can be created at `path`. Creates the temporary file of an AtomicFile, whose
// destructor removes this file, because it is not committed.
void try_to_write(const std::filesystem::path& path) { const AtomicFile never_committed(path); }

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(content.data(), content.size())));
  file.commit();
}

void remove_file(const std::filesystem::path& path) {
  // The caller relies on the order in which removals and renames reach the disk, so the folder is
  // synced after the removal.
  if (::unlink(path.c_str()) == 0) return sync_folder(folder_of(path));
  const int error = errno;
  // If there is no file, there is nothing to sync.
  if (error == ENOENT) return;
  cannot_create(path, error, "cannot remove the file");
}

std::vector<std::string> remove_leftovers(
    const std::filesystem::path& folder,
    const std::function<bool(std::string_view name)>& is_ours) {
  // The removal is best effort: if the folder cannot be read, no file is removed.
  std::vector<std::string> removed;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string found = entry->path().filename();
    const std::string_view target = target_of(found);
    if (!target.empty() && is_ours(target) && remove_if_dead(entry->path())) {
      removed.push_back(found);
    }
  }
  std::ranges::sort(removed);
  return removed;
}

}  // namespace fsdp
