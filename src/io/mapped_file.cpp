#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fsdp/error.h"
#include "io/file_failure.h"

namespace fsdp {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, std::string cause,
                              std::string hint = {}) {
  throw IoError(ExitCode::kIoError, {.what = "cannot read the file",
                                     .where = path.string(),
                                     .cause = std::move(cause),
                                     .hint = std::move(hint)});
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // With O_NONBLOCK, open() does not block on a pipe without a writer. The pipe is refused below.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    cannot_read(path, system_cause(errno), errno == ENOENT ? "check the path" : "");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) cannot_read(path, system_cause(errno));
  if (S_ISDIR(status.st_mode)) cannot_read(path, "it is a folder", "name a file in it");
  if (!S_ISREG(status.st_mode)) cannot_read(path, "it is not a regular file");
  // An empty file is not mapped, because mmap refuses a length of 0.
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  // The mapping outlives the descriptor, which is closed at the end of the constructor.
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) cannot_read(path, system_cause(errno));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

// Releases whole blocks of 64 KiB, because an access to one page makes the system map all pages of
// its block.
void MappedFile::forget(std::span<const std::byte> part) const {
  constexpr size_t kBlockBytes = 64 * 1024;
  if (part.empty()) return;
  const size_t begin = static_cast<size_t>(part.data() - bytes_.data()) / kBlockBytes * kBlockBytes;
  const size_t end = static_cast<size_t>(part.data() - bytes_.data()) + part.size();
  const size_t block_end = (end + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  // If madvise fails, the pages stay resident, which is harmless.
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin,
            std::min(block_end, bytes_.size()) - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace fsdp
