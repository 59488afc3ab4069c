// MappedFile: the bytes of a file, mapped read-only. Only the pages that the program accesses are
// read from the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace fsdp {

// A read-only mapping of a file. Move-only. The bytes are valid as long as the object exists. The
// descriptor is closed at once, so any number of files may be mapped.
// Requires: no process truncates the file as long as the object exists. A process may replace the
//   file by rename.
class MappedFile {
 public:
  // Errors: IoError kIoError if the file is missing, unreadable, or not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  // Releases the pages of `part` from this process's memory. A later access reads them again.
  // Requires: `part` is within bytes().
  void forget(std::span<const std::byte> part) const;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace fsdp
