#include "io/support/recorded_disk.h"

#include <fcntl.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "support/scratch_folder.h"

namespace fsdp {
namespace {

using CallKind = RecordedCall::Kind;

bool changes_content(CallKind kind) {
  return kind == CallKind::kWrite || kind == CallKind::kResize;
}
bool changes_names(CallKind kind) {
  return kind == CallKind::kCreate || kind == CallKind::kMakeFolder || kind == CallKind::kRename ||
         kind == CallKind::kRemove;
}

// The state of the disk during a replay.
class Replay {
 public:
  explicit Replay(const std::filesystem::path& root) { places_[0] = root; }

  // `kept`: the number of bytes that reached the disk; nothing if all did.
  void apply(const RecordedCall& call, std::optional<int64_t> kept) {
    switch (call.kind) {
      case CallKind::kFound:
        if (const auto at = place(call.folder, call.name)) places_[call.node] = *at;
        break;
      case CallKind::kCreate:
      case CallKind::kMakeFolder:
        make(call);
        break;
      case CallKind::kResize:
      case CallKind::kWrite:
        write(call, kept);
        break;
      case CallKind::kRename:
        move(call);
        break;
      case CallKind::kRemove:
        remove(call);
        break;
      case CallKind::kSync:
        break;
    }
  }

  void write_files() const {
    for (const auto& [node, content] : contents_) {
      const auto at = places_.find(node);
      if (at == places_.end()) continue;
      std::ofstream file(at->second, std::ios::binary);
      file.write(content.data(), std::ssize(content));
      if (!file.flush()) throw std::runtime_error("cannot write " + at->second.string());
    }
  }

 private:
  std::optional<std::filesystem::path> place(int64_t folder, const std::string& name) const {
    const auto at = places_.find(folder);
    if (at == places_.end()) return std::nullopt;
    return at->second / name;
  }

  void make(const RecordedCall& call) {
    const auto at = place(call.folder, call.name);
    if (!at) return;
    places_[call.node] = *at;
    if (call.kind == CallKind::kMakeFolder) {
      std::filesystem::create_directory(*at);
    } else {
      std::ofstream(*at).flush();
      contents_[call.node];
    }
  }

  void write(const RecordedCall& call, std::optional<int64_t> kept) {
    std::string& content = contents_[call.node];
    const auto grow = [&](int64_t size) {
      content.resize(std::max(content.size(), static_cast<size_t>(size)));
    };
    if (call.kind == CallKind::kResize) return grow(call.offset_bytes);
    const int64_t size = std::min(kept.value_or(std::ssize(call.bytes)), std::ssize(call.bytes));
    grow(call.offset_bytes + size);
    std::copy_n(call.bytes.begin(), size, content.begin() + call.offset_bytes);
  }

  // A folder may have names, because their removal was dropped. It then stays.
  void remove(const RecordedCall& call) {
    std::error_code not_empty;
    const auto at = place(call.folder, call.name);
    if (at && std::filesystem::remove(*at, not_empty)) places_.erase(call.node);
  }

  void move(const RecordedCall& call) {
    const auto from = place(call.folder, call.name);
    const auto to = place(call.to_folder, call.to_name);
    if (!from || !to || !std::filesystem::exists(*from)) return;
    std::error_code not_empty;
    std::filesystem::rename(*from, *to, not_empty);
    if (not_empty) return;
    std::erase_if(places_, [&](const auto& each) { return each.second == *to; });
    for (auto& [node, path] : places_) {
      const auto inside = path.lexically_relative(*from);
      if (path == *from) {
        path = *to;
      } else if (!inside.empty() && *inside.begin() != "..") {
        path = *to / inside;
      }
    }
  }

  std::map<int64_t, std::filesystem::path> places_;  // of nodes that have a name
  std::map<int64_t, std::string> contents_;          // of files that were created
};

}  // namespace

std::string_view name_of(RecordedCall::Kind kind) {
  constexpr std::string_view kNames[] = {"found", "create", "mkdir",  "fallocate",
                                         "write", "fsync",  "rename", "remove"};
  return kNames[static_cast<size_t>(kind)];
}

RecordedDisk::RecordedDisk(std::filesystem::path root) : root_(std::move(root)) {}

std::filesystem::path RecordedDisk::path_of(int64_t node) const {
  const auto at = std::ranges::find(names_, node, [](const auto& each) { return each.second; });
  if (at == names_.end()) return {};  // the root
  return path_of(at->first.folder) / at->first.name;
}

// Returns the folder's node and the name in it. Nodes that are seen for the first time were there
// before the recording.
RecordedDisk::Name RecordedDisk::name_of_path(const std::filesystem::path& path) {
  const std::filesystem::path inside = path.lexically_relative(root_);
  if (inside.empty() || *inside.begin() == "..") {
    throw std::logic_error(path.string() + " is not in the recorded folder " + root_.string());
  }
  Name name{.folder = 0, .name = "."};
  for (const auto& part : inside) {
    const int64_t folder = name.name == "." ? 0 : node_of(name);
    name = {.folder = folder, .name = part.string()};
  }
  return name;
}

int64_t RecordedDisk::node_of(const Name& name) {
  if (name.name == ".") return 0;
  const auto [at, is_new] = names_.emplace(name, nodes_);
  if (is_new) {
    ++nodes_;
    record(
        {.kind = CallKind::kFound, .node = at->second, .folder = name.folder, .name = name.name});
  }
  return at->second;
}

void RecordedDisk::record(RecordedCall call) {
  call.path = path_of(call.node);
  calls_.push_back(std::move(call));
}

int RecordedDisk::open(const char* path, int flags, mode_t mode) {
  const std::lock_guard lock(mutex_);
  const bool existed = std::filesystem::exists(path);
  if (existed && (flags & O_EXCL) == 0 && (flags & O_ACCMODE) != O_RDONLY) {
    throw std::logic_error(std::string(path) + ": only writes to new files are recorded");
  }
  const Name name = name_of_path(path);
  const int fd = Disk::open(path, flags, mode);
  if (fd < 0) return fd;
  if (!existed) {
    names_[name] = nodes_;
    record({.kind = CallKind::kCreate, .node = nodes_++, .folder = name.folder, .name = name.name});
  }
  open_[fd] = node_of(name);
  return fd;
}

ssize_t RecordedDisk::pwrite(int fd, const void* bytes, size_t size, int64_t offset) {
  const std::lock_guard lock(mutex_);
  const ssize_t written = Disk::pwrite(fd, bytes, size, offset);
  if (written < 0) return written;
  record({.kind = CallKind::kWrite,
          .node = open_.at(fd),
          .offset_bytes = offset,
          .bytes = {static_cast<const char*>(bytes), static_cast<size_t>(written)}});
  return written;
}

int RecordedDisk::fallocate(int fd, int64_t size) {
  const std::lock_guard lock(mutex_);
  const int result = Disk::fallocate(fd, size);
  if (result == 0) record({.kind = CallKind::kResize, .node = open_.at(fd), .offset_bytes = size});
  return result;
}

int RecordedDisk::fsync(int fd) {
  const std::lock_guard lock(mutex_);
  record({.kind = CallKind::kSync, .node = open_.at(fd)});
  return 0;
}

int RecordedDisk::close(int fd) {
  const std::lock_guard lock(mutex_);
  open_.erase(fd);
  return Disk::close(fd);
}

int RecordedDisk::mkdir(const char* path, mode_t mode) {
  const std::lock_guard lock(mutex_);
  const int result = Disk::mkdir(path, mode);
  if (result != 0) return result;
  const Name name = name_of_path(path);
  names_[name] = nodes_;
  record(
      {.kind = CallKind::kMakeFolder, .node = nodes_++, .folder = name.folder, .name = name.name});
  return result;
}

int RecordedDisk::rename(const char* from, const char* to) {
  const std::lock_guard lock(mutex_);
  const int result = Disk::rename(from, to);
  if (result != 0) return result;
  const Name old_name = name_of_path(from), new_name = name_of_path(to);
  const int64_t node = node_of(old_name);
  record({.kind = CallKind::kRename,
          .node = node,
          .folder = old_name.folder,
          .name = old_name.name,
          .to_folder = new_name.folder,
          .to_name = new_name.name});
  names_.erase(old_name);
  names_[new_name] = node;
  return result;
}

int RecordedDisk::removed(int result, const char* path) {
  if (result != 0) return result;
  const Name name = name_of_path(path);
  record(
      {.kind = CallKind::kRemove, .node = node_of(name), .folder = name.folder, .name = name.name});
  names_.erase(name);
  return result;
}

int RecordedDisk::unlink(const char* path) {
  const std::lock_guard lock(mutex_);
  return removed(Disk::unlink(path), path);
}

int RecordedDisk::rmdir(const char* path) {
  const std::lock_guard lock(mutex_);
  return removed(Disk::rmdir(path), path);
}

std::vector<size_t> RecordedDisk::unsynced(size_t calls) const {
  std::vector<size_t> result;
  std::set<int64_t> synced;  // nodes with a sync after the call that is looked at
  for (size_t i = calls; i-- > 0;) {
    const RecordedCall& call = calls_.at(i);
    if (call.kind == CallKind::kSync) synced.insert(call.node);
    const bool may_lose_content = changes_content(call.kind) && !synced.contains(call.node);
    const bool may_lose_name = changes_names(call.kind) &&
                               !(synced.contains(call.folder) && (call.kind != CallKind::kRename ||
                                                                  synced.contains(call.to_folder)));
    if (may_lose_content || may_lose_name) result.push_back(i);
  }
  std::ranges::reverse(result);
  return result;
}

void RecordedDisk::replay(const std::filesystem::path& into, const PowerLoss& loss) const {
  const std::vector<size_t> may_drop = unsynced(loss.calls);
  for (const auto& [index, bytes] : loss.kept_bytes) {
    if (!std::ranges::binary_search(may_drop, index)) {
      throw std::logic_error("call " + std::to_string(index) + " was synced");
    }
  }
  Replay replay(into);
  for (size_t i = 0; i < loss.calls; ++i) {
    const auto kept = loss.kept_bytes.find(i);
    if (kept == loss.kept_bytes.end()) {
      replay.apply(calls_[i], {});
    } else if (kept->second > 0) {
      replay.apply(calls_[i], kept->second);
    }
  }
  replay.write_files();
}

void for_each_loss(
    const RecordedDisk& disk,
    const std::function<void(const std::filesystem::path&, const PowerLoss&)>& look) {
  const auto make = [&](const PowerLoss& loss) {
    const ScratchFolder left;
    disk.replay(left.path(), loss);
    look(left.path(), loss);
  };
  for (size_t calls = 0; calls <= disk.calls().size(); ++calls) {
    const std::vector<size_t> unsynced = disk.unsynced(calls);
    make({.calls = calls});
    PowerLoss all{.calls = calls};
    for (const size_t i : unsynced) all.kept_bytes[i] = 0;
    make(all);
    for (const size_t i : unsynced) {
      const RecordedCall& call = disk.calls()[i];
      const int64_t size = call.kind == CallKind::kWrite ? std::ssize(call.bytes) : 1;
      for (int64_t kept = 0; kept < size; kept += 512) {
        make({.calls = calls, .kept_bytes = {{i, kept}}});
        PowerLoss others_dropped = all;
        others_dropped.kept_bytes[i] = kept;
        make(others_dropped);
      }
    }
  }
}

}  // namespace fsdp
