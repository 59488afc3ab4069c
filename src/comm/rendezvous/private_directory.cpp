#include "comm/rendezvous/private_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "comm/job/fingerprint.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string cause) {
  throw InvalidArgument(
      {.what = "the ranks' rendezvous directory cannot be used",
       .where = path,
       .cause = std::move(cause),
       .hint = "remove the directory, or start the ranks with fsdp-run, which does not need it"});
}

// Returns true if the open file `fd` is the file that `path` names now.
bool same_file(int fd, const std::string& path) {
  struct stat by_fd {};
  struct stat by_path {};
  return fstat(fd, &by_fd) == 0 && stat(path.c_str(), &by_path) == 0 &&
         by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev;
}

std::string name_prefix() { return fmt::format("fsdp-{}-", geteuid()); }

// A starting job opens its lock file shortly before it locks the file. Meanwhile no other process
// may lock the file. So a directory that was changed less than kStartsWithinSeconds ago is neither
// locked nor removed.
constexpr time_t kStartsWithinSeconds = 60;

// Returns true for an old directory of this user. The caller then checks its lock: if the lock is
// free, the directory is abandoned.
bool may_be_abandoned(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == geteuid() && status.st_mtime < time(nullptr) - kStartsWithinSeconds;
}

}  // namespace

std::string private_directory_path(const std::string& runtime_dir, const std::string& key) {
  // The path of a socket is limited to about 100 characters, so a long `runtime_dir` is not used.
  const bool usable = runtime_dir.starts_with('/') && runtime_dir.size() < 60;
  return fmt::format("{}/{}{:016x}", usable ? runtime_dir : "/tmp", name_prefix(),
                     mix_text(geteuid(), key));
}

void make_private_directory(const std::string& path) {
  // mkdir is called before any check, because another process could make the directory after a
  // check.
  if (mkdir(path.c_str(), 0700) == 0) return;
  if (errno != EEXIST) refuse(path, std::strerror(errno));
  check_private_directory(path);
}

bool check_private_directory(const std::string& path) {
  struct stat status {};
  // lstat does not follow links. This matters because another user could have put a link into /tmp.
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    refuse(path, std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) refuse(path, "it is not a directory");
  if (status.st_uid != geteuid()) refuse(path, fmt::format("it belongs to user {}", status.st_uid));
  if ((status.st_mode & 0777) != 0700) {
    refuse(path, fmt::format("its mode is {:o}, not 700", status.st_mode & 0777));
  }
  return true;
}

Descriptor lock_private_directory(const std::string& path) {
  const std::string file = path + "/lock";
  while (true) {
    make_private_directory(path);
    Descriptor lock(open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) {
      if (errno == ENOENT) continue;  // its owner removed the directory in between
      refuse(path, std::strerror(errno));
    }
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
    // The last owner may have removed the file between open and flock. A lock on a removed file
    // excludes no other process, so the loop opens the file again.
    if (same_file(lock.get(), file)) return lock;
  }
}

void remove_private_directory(const std::string& path, const std::string& file) noexcept {
  unlink((path + "/" + file).c_str());
  unlink((path + "/lock").c_str());
  rmdir(path.c_str());
}

void remove_abandoned_directories(const std::string& path, const std::string& file) noexcept {
  namespace fs = std::filesystem;
  std::error_code unreadable;  // set if the parent cannot be read; then nothing is removed
  fs::directory_iterator entry(fs::path(path).parent_path(), unreadable);
  for (; !unreadable && entry != fs::directory_iterator(); entry.increment(unreadable)) {
    const std::string other = entry->path();
    if (other == path || !entry->path().filename().string().starts_with(name_prefix())) continue;
    if (!may_be_abandoned(other)) continue;
    const std::string lock_file = other + "/lock";
    // A job that has just started in this directory holds the lock. So the directory is removed
    // only if this process gets the lock, and while it holds the lock.
    const Descriptor lock(open(lock_file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (same_file(lock.get(), lock_file)) remove_private_directory(other, file);
  }
}

}  // namespace fsdp
