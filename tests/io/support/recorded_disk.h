// RecordedDisk: records the calls of a Disk, and shows what a loss of power would leave of them.
//
//   RecordedDisk disk(folder.path());
//   save(disk, folder.path());
//   for_each_loss(disk, [](const std::filesystem::path& left, const PowerLoss&) { load(left); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/disk.h"

namespace fsdp {

// A call that changed something or synced it. Nodes are files and folders; they keep their number
// when they are renamed. Node 0 is the root.
struct RecordedCall {
  enum class Kind : uint8_t {
    kFound,  // a file or folder that was there before the recording; not a call
    kCreate,
    kMakeFolder,
    kResize,  // fallocate
    kWrite,
    kSync,
    kRename,
    kRemove,
  };
  Kind kind;
  int64_t node = 0;
  int64_t folder = 0;     // the folder that has, or had, the node's name
  std::string name;       // in that folder
  int64_t to_folder = 0;  // of kRename
  std::string to_name;
  int64_t offset_bytes = 0;  // of kWrite; the size of kResize
  std::string bytes;
  std::filesystem::path path;  // from the root at the time of the call, for messages
};
std::string_view name_of(RecordedCall::Kind kind);

// A loss of power after the first `calls` calls.
struct PowerLoss {
  size_t calls = 0;
  // For calls that were not synced, by index: the number of bytes of a write that reached the disk.
  // 0 drops the write, the name, the rename or the removal. A call that is not in the map reached
  // the disk.
  std::map<size_t, int64_t> kept_bytes;
};

// Passes all calls on to the system, but syncs nothing, because a replay needs no disk. Records the
// calls that succeeded on paths in `root`. Thread-safe.
class RecordedDisk : public Disk {
 public:
  explicit RecordedDisk(std::filesystem::path root);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t offset) override;
  int fallocate(int fd, int64_t size) override;
  int fsync(int fd) override;
  int close(int fd) override;
  int mkdir(const char* path, mode_t mode) override;
  int rename(const char* from, const char* to) override;
  int unlink(const char* path) override;
  int rmdir(const char* path) override;

  const std::vector<RecordedCall>& calls() const { return calls_; }
  // Removes a recorded call, so that a test can show that it would miss it.
  void forget_call(size_t index) { calls_.erase(calls_.begin() + static_cast<ptrdiff_t>(index)); }

  // Returns the calls, of the first `calls`, that a loss of power may drop: writes and sizes of a
  // file that was not synced later, and names in a folder that was not synced later.
  std::vector<size_t> unsynced(size_t calls) const;
  // Makes in `into` what the loss leaves. `into` is empty or a copy of the root before the
  // recording.
  // Requires: `loss.kept_bytes` names only calls of unsynced(). A kept call has no effect if a
  // dropped one made its folder or its file.
  void replay(const std::filesystem::path& into, const PowerLoss& loss) const;

 private:
  struct Name {
    int64_t folder;
    std::string name;
    auto operator<=>(const Name&) const = default;
  };
  std::filesystem::path path_of(int64_t node) const;
  Name name_of_path(const std::filesystem::path& path);
  int64_t node_of(const Name& name);
  void record(RecordedCall call);
  int removed(int result, const char* path);

  const std::filesystem::path root_;
  std::mutex mutex_;
  std::vector<RecordedCall> calls_;
  int64_t nodes_ = 1;
  std::map<Name, int64_t> names_;  // nodes by their present names
  std::map<int, int64_t> open_;    // nodes by descriptor
};

// Calls `look` with each state that a loss of power can leave: after each number of calls, with all
// unsynced calls kept, all dropped, and each one dropped (a write also torn at each 512 bytes)
// while the others are kept or dropped. Each state is replayed into an empty folder.
void for_each_loss(
    const RecordedDisk& disk,
    const std::function<void(const std::filesystem::path& left, const PowerLoss& loss)>& look);

}  // namespace fsdp
