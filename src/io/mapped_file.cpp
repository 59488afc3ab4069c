#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "fsdp/error.h"
#include "fsdp/whole_file.h"
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

// An open regular file.
struct OpenFile {
  Descriptor descriptor;
  size_t bytes = 0;
};

OpenFile open_file(const std::filesystem::path& path) {
  // With O_NONBLOCK, open() does not block on a pipe without a writer. The pipe is refused below.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) cannot_read(path, system_cause(errno), errno == ENOENT ? "check the path" : "");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) cannot_read(path, system_cause(errno));
  if (S_ISDIR(status.st_mode)) cannot_read(path, "it is a folder", "name a file in it");
  if (!S_ISREG(status.st_mode)) cannot_read(path, "it is not a regular file");
  return {std::move(file), static_cast<size_t>(status.st_size)};
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OpenFile file = open_file(path);
  // An empty file is not mapped, because mmap refuses a length of 0.
  if (file.bytes == 0) return;
  // The mapping outlives the descriptor, which is closed at the end of the constructor.
  void* data = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
  if (data == MAP_FAILED) cannot_read(path, system_cause(errno));
  bytes_ = {static_cast<const std::byte*>(data), file.bytes};
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

// Does not map the file: another process may truncate it meanwhile.
std::string read_file(const std::filesystem::path& path) {
  const OpenFile file = open_file(path);
  std::string content(file.bytes, '\0');
  for (size_t at = 0; at < content.size();) {
    const ssize_t got = ::read(file.descriptor.get(), content.data() + at, content.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path, system_cause(errno));
    if (got == 0) content.resize(at);  // the file was truncated
    at += static_cast<size_t>(got);
  }
  return content;
}

void require_readable(const std::filesystem::path& path) { open_file(path); }

}  // namespace fsdp
