#include "checkpoint/stored_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr std::string_view kUpdates = "updates";

template <class Value>
const Value& value_of(const ManifestObject& object, std::string_view name) {
  const auto found = object.values.find(std::string(name));
  const Value* value = found != object.values.end() ? std::get_if<Value>(&found->second) : nullptr;
  if (value != nullptr) return *value;
  refuse_object(object, fmt::format("has no valid value of {}", quoted_name(name)),
                "use a checkpoint of this program and of this version of fsdp");
}

}  // namespace

void refuse_object(const ManifestObject& object, std::string what, std::string hint) {
  throw IoError(ExitCode::kCorruptData,
                {.what = fmt::format("{} in the checkpoint {}", quoted_name(object.name), what),
                 .hint = std::move(hint)});
}

std::map<std::string, std::vector<std::string>, std::less<>> moments_in(
    const CheckpointManifest& manifest, std::string_view name) {
  std::map<std::string, std::vector<std::string>, std::less<>> found;
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::string_view rest = tensor.name;
    if (!rest.starts_with(name) || !rest.substr(name.size()).starts_with('/')) continue;
    rest.remove_prefix(name.size() + 1);
    const size_t slash = rest.find('/');
    if (slash == rest.npos) continue;
    found[std::string(rest.substr(slash + 1))].emplace_back(rest.substr(0, slash));
  }
  return found;
}

void add_counts(const std::map<std::string, int64_t>& counts,
                std::map<std::string, ManifestValue>& to) {
  std::map<int64_t, int64_t> uses;
  for (const auto& [name, count] : counts) ++uses[count];
  const auto most = std::ranges::max_element(
      uses, {}, [](const std::pair<const int64_t, int64_t>& each) { return each.second; });
  const int64_t common = most != uses.end() ? most->first : 0;
  to[std::string(kUpdates)] = common;
  for (const auto& [name, count] : counts) {
    if (count != common) to[fmt::format("{}/{}", kUpdates, name)] = count;
  }
}

int64_t count_of(const ManifestObject& object, const std::string& name) {
  const std::string own = fmt::format("{}/{}", kUpdates, name);
  const int64_t count = int64_of(object, object.values.contains(own) ? own : std::string(kUpdates));
  if (count >= 0) return count;
  refuse_object(object, fmt::format("has {} updates of {}", count, quoted_name(name)),
                "resume from an earlier checkpoint");
}

int64_t int64_of(const ManifestObject& object, std::string_view name) {
  return value_of<int64_t>(object, name);
}
double double_of(const ManifestObject& object, std::string_view name) {
  return value_of<double>(object, name);
}
const std::string& text_of(const ManifestObject& object, std::string_view name) {
  return value_of<std::string>(object, name);
}

}  // namespace fsdp
