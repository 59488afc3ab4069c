#include "io/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "io/file_failure.h"

namespace fsdp {
namespace {

// Repeats a call while a signal interrupts it.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Closes a descriptor. The call is not repeated after EINTR: Linux has closed the descriptor, and
// its number may belong to another file.
int close_once(Disk& disk, int fd) { return disk.close(fd) == 0 || errno == EINTR ? 0 : -1; }

bool can_be_direct(int64_t offset, std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return (static_cast<uintptr_t>(offset) | address | bytes.size()) % kDirectAlignment == 0;
}

}  // namespace

NewFile::NewFile(Disk& disk, std::filesystem::path path, Caching caching)
    : disk_(disk), path_(std::move(path)) {
  fd_ = uninterrupted(
      [&] { return disk_.open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (fd_ < 0) cannot_create(path_, errno);
  // O_DIRECT is set after the file was created, because open() with O_DIRECT may create the file
  // and then fail.
  direct_ =
      caching == Caching::kDirect && ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) | O_DIRECT) == 0;
}

NewFile::~NewFile() {
  if (fd_ >= 0) disk_.close(fd_);
}

void NewFile::stop_direct() {
  ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_DIRECT);
  direct_ = false;
}

void NewFile::reserve(int64_t bytes) {
  if (uninterrupted([&] { return disk_.fallocate(fd_, bytes); }) == 0) return;
  fail_file(ExitCode::kIoError, fmt::format("cannot reserve {} bytes for the file", bytes),
            path_.string(), errno);
}

void NewFile::write_at(int64_t offset_bytes, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // The end of the file and the rest of a short write are not aligned, so they are written
    // through the page cache.
    if (direct_ && !can_be_direct(offset_bytes, bytes)) stop_direct();
    const ssize_t written = disk_.pwrite(fd_, bytes.data(), bytes.size(), offset_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && direct_) {
      stop_direct();
      continue;
    }
    if (written <= 0) {
      // If pwrite writes nothing and reports no error, the device is treated as full.
      fail_file(ExitCode::kIoError, "cannot write the file",
                fmt::format("{}, byte {}", path_.string(), offset_bytes),
                written == 0 ? ENOSPC : errno);
    }
    offset_bytes += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void NewFile::finish() {
  if (uninterrupted([&] { return disk_.fsync(fd_); }) != 0) {
    fail_file(ExitCode::kIoError, "cannot sync the file", path_.string(), errno);
  }
  // An error of close is reported, because network file systems report a full disk only on close.
  if (close_once(disk_, std::exchange(fd_, -1)) != 0) {
    fail_file(ExitCode::kIoError, "cannot close the file", path_.string(), errno);
  }
}

void write_new_file(Disk& disk, const std::filesystem::path& path,
                    std::span<const std::byte> bytes) {
  NewFile file(disk, path, Caching::kBuffered);
  file.write_at(0, bytes);
  file.finish();
}

void give_name(Disk& disk, const std::filesystem::path& from, const std::filesystem::path& to) {
  if (uninterrupted([&] { return disk.rename(from.c_str(), to.c_str()); }) != 0) {
    fail_file(ExitCode::kIoError, "cannot give the file its name", to.string(), errno);
  }
}

void sync_names(Disk& disk, const std::filesystem::path& folder) {
  const int fd = uninterrupted(
      [&] { return disk.open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) fail_file(ExitCode::kIoError, "cannot open the folder to sync it", folder, errno);
  const int error = uninterrupted([&] { return disk.fsync(fd); }) == 0 ? 0 : errno;
  disk.close(fd);
  // EINVAL means that the file system cannot sync folders, so nothing more can be done.
  if (error != 0 && error != EINVAL) {
    fail_file(ExitCode::kIoError, "cannot sync the folder", folder, error);
  }
}

}  // namespace fsdp
