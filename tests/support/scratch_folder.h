// A folder for one test. The destructor removes it with its content.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  // Writes a file without the library, because a test must not rely on the code that it tests.
  std::filesystem::path write(std::string_view name, std::string_view content) const;
  std::vector<std::string> names() const;  // sorted, hidden files included

 private:
  std::filesystem::path path_;
};

std::string read_whole(const std::filesystem::path& path);

}  // namespace fsdp
