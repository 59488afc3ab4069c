#include "programs/checkpoint_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fsdp/program_text.h"
#include "io/checkpoint_tensors.h"
#include "io/exact_number.h"
#include "io/name_list.h"
#include "io/safetensors_header.h"
#include "kernels/element_cast.h"
#include "programs/checkpoint_listing.h"

namespace fsdp {
namespace {

constexpr int64_t kComparedBytes = 4 << 20;

// An element of a type whose values this program does not interpret.
template <class Bits>
struct OpaqueElement {
  Bits bits;
};

// Calls visit(Element()) with the C++ type that has the size and the values of `dtype`.
template <class Visit>
auto visit_stored_element(StoredDType dtype, const Visit& visit) {
  switch (dtype) {
    case StoredDType::kF64:
      return visit(double());
    case StoredDType::kF32:
      return visit(float());
    case StoredDType::kBF16:
      return visit(kernels::BFloat16());
    case StoredDType::kF16:
      return visit(kernels::Float16());
    case StoredDType::kI64:
      return visit(int64_t());
    case StoredDType::kU64:
      return visit(uint64_t());
    case StoredDType::kI32:
      return visit(int32_t());
    case StoredDType::kU32:
      return visit(uint32_t());
    case StoredDType::kI16:
      return visit(int16_t());
    case StoredDType::kU16:
      return visit(uint16_t());
    case StoredDType::kI8:
      return visit(int8_t());
    case StoredDType::kU8:
    case StoredDType::kBool:
      return visit(uint8_t());
    case StoredDType::kC64:
      return visit(OpaqueElement<uint64_t>());
    default:  // types of 8 bits: the manifest's reader refuses smaller ones
      return visit(OpaqueElement<uint8_t>());
  }
}

template <class Element>
auto value_of(Element element) {
  if constexpr (std::is_arithmetic_v<Element>) {
    return element;
  } else {
    return kernels::to_float(element);
  }
}
template <class Bits>
std::string value_of(OpaqueElement<Bits> element) {
  return fmt::format("{:#x}", element.bits);
}

// Returns the absolute difference, exact for integers, and 0 for opaque elements.
template <class Value>
auto distance_of(const Value& a, const Value& b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<uint64_t>(std::max(a, b)) - static_cast<uint64_t>(std::min(a, b));
  } else if constexpr (std::is_floating_point_v<Value>) {
    return std::abs(static_cast<double>(a) - static_cast<double>(b));
  } else {
    return 0;
  }
}

// The tensors that both checkpoints have, as places in their manifests.
struct CommonTensor {
  int64_t first = 0;
  int64_t second = 0;
  int64_t numel = 0;  // to compare
};

class Comparison {
 public:
  Comparison(const std::filesystem::path& first, const std::filesystem::path& second, bool all,
             const std::function<void(const std::string& line)>& say)
      : first_(first), second_(second), all_(all), say_(say) {}

  bool run() {
    compare_values();
    const std::vector<CommonTensor> common = match_tensors();
    for (size_t i = 0; i < common.size(); ++i) {
      if (!compare(common[i]) || all_) continue;
      const size_t rest = common.size() - i - 1;
      if (rest > 0) {
        say_(fmt::format("{} more tensor{} not compared (--all)", rest, rest == 1 ? "" : "s"));
      }
      break;
    }
    return equal_;
  }

 private:
  void differ(const std::string& line) {
    equal_ = false;
    say_(line);
  }

  void differ_in(std::string_view what, std::string_view a, std::string_view b) {
    differ(fmt::format("{}: {} and {}", what, a, b));
  }

  // Reports the names that only one of the checkpoints has.
  void differ_in_names(std::string_view what, const std::vector<std::string>& names,
                       const CheckpointTensors& owner) {
    const std::string where = printable(owner.folder().string());
    if (!all_ && !names.empty()) {
      differ(fmt::format("only in {}: {}, {}", where, counted(names, what), list_of(names)));
    }
    if (!all_) return;
    for (const std::string& name : names) {
      differ(fmt::format("only in {}: {} {}", where, what, quoted_name(name)));
    }
  }

  void compare_values() {
    const CheckpointManifest& a = first_.manifest();
    const CheckpointManifest& b = second_.manifest();
    if (a.step != b.step) differ_in("step", fmt::to_string(a.step), fmt::to_string(b.step));
    const auto find = [](const CheckpointManifest& in, const std::string& name) {
      const auto at = std::ranges::find(in.objects, name, &ManifestObject::name);
      return at == in.objects.end() ? nullptr : &*at;
    };
    std::vector<std::string> only_a, only_b;
    for (const ManifestObject& object : a.objects) {
      const ManifestObject* other = find(b, object.name);
      if (other == nullptr) {
        only_a.push_back(object.name);
      } else {
        compare_objects(object, *other);
      }
    }
    for (const ManifestObject& object : b.objects) {
      if (find(a, object.name) == nullptr) only_b.push_back(object.name);
    }
    differ_in_names("object", only_a, first_);
    differ_in_names("object", only_b, second_);
  }

  void compare_objects(const ManifestObject& a, const ManifestObject& b) {
    const std::string object = printable(a.name);
    if (a.kind != b.kind) differ_in("object " + object, printable(a.kind), printable(b.kind));
    std::set<std::string> names;
    for (const ManifestObject* each : {&a, &b}) {
      for (const auto& [name, value] : each->values) names.insert(name);
    }
    for (const std::string& name : names) {
      const auto text = [&](const ManifestObject& from) {
        const auto at = from.values.find(name);
        return at == from.values.end() ? "no value" : text_of(at->second);
      };
      const auto at_a = a.values.find(name), at_b = b.values.find(name);
      const bool both = at_a != a.values.end() && at_b != b.values.end();
      if (both && is_same(at_a->second, at_b->second)) continue;
      differ_in(fmt::format("{} {}", object, printable(name)), text(a), text(b));
    }
  }

  // Compares the bits, so that a NaN equals itself.
  static bool is_same(const ManifestValue& a, const ManifestValue& b) {
    const auto *real_a = std::get_if<double>(&a), *real_b = std::get_if<double>(&b);
    if (real_a == nullptr || real_b == nullptr) return a == b;
    return exact_text(*real_a) == exact_text(*real_b);
  }

  // Finds the tensors that both checkpoints have. Reports the others, and those of different form.
  std::vector<CommonTensor> match_tensors() {
    const std::vector<ManifestTensor>& a = first_.manifest().tensors;
    const std::vector<ManifestTensor>& b = second_.manifest().tensors;
    std::map<std::string_view, int64_t> places;
    for (int64_t i = 0; i < std::ssize(b); ++i) places[b[static_cast<size_t>(i)].name] = i;
    std::vector<CommonTensor> common;
    std::vector<std::string> only_a, only_b;
    for (int64_t i = 0; i < std::ssize(a); ++i) {
      const ManifestTensor& tensor = a[static_cast<size_t>(i)];
      const auto at = places.find(tensor.name);
      if (at == places.end()) {
        only_a.push_back(tensor.name);
        continue;
      }
      const ManifestTensor& other = b[static_cast<size_t>(at->second)];
      if (const auto numel = comparable_numel(tensor, other)) {
        common.push_back({i, at->second, *numel});
      } else {
        differ_in(fmt::format("tensor {}", quoted_name(tensor.name)), form_of(tensor),
                  form_of(other));
      }
      places.erase(at);
    }
    for (const ManifestTensor& tensor : b) {
      if (places.contains(tensor.name)) only_b.push_back(tensor.name);
    }
    differ_in_names("tensor", only_a, first_);
    differ_in_names("tensor", only_b, second_);
    return common;
  }

  static std::string form_of(const ManifestTensor& tensor) {
    return fmt::format("{} of shape {} and strides {}", name_of(tensor.dtype),
                       format_shape(tensor.shape), format_shape(tensor.strides));
  }

  // Returns the number of elements to compare, or nothing if the tensors differ in type, shape or
  // memory order.
  static std::optional<int64_t> comparable_numel(const ManifestTensor& a, const ManifestTensor& b) {
    const int64_t numel = std::min(a.numel(), b.numel());
    if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return std::nullopt;
    // The states of random generators have a row per rank, and rows follow each other in memory.
    const bool by_rank = a.name.starts_with("random/");
    for (size_t i = 0; i < a.shape.size(); ++i) {
      if (a.shape[i] != b.shape[i] && !(by_rank && i == 0)) return std::nullopt;
      const bool has_effect = numel > 0 && std::max(a.shape[i], b.shape[i]) > 1;
      if (has_effect && a.strides[i] != b.strides[i]) return std::nullopt;
    }
    return numel;
  }

  // Returns true if values differ, and reports them.
  bool compare(const CommonTensor& tensor) {
    const StoredDType dtype = first_.manifest().tensors[static_cast<size_t>(tensor.first)].dtype;
    return visit_stored_element(
        dtype, [&](auto element) { return compare_as<decltype(element)>(tensor); });
  }

  template <class Element>
  bool compare_as(const CommonTensor& tensor) {
    constexpr int64_t kMost = kComparedBytes / static_cast<int64_t>(sizeof(Element));
    const auto count = static_cast<size_t>(std::min(kMost, tensor.numel));
    std::vector<Element> a(count), b(count);
    int64_t differing = 0;
    std::string first;
    auto largest = distance_of(value_of(Element()), value_of(Element()));  // 0
    for (int64_t begin = 0; begin < tensor.numel; begin += kMost) {
      const auto size = static_cast<size_t>(std::min(kMost, tensor.numel - begin));
      first_.read(tensor.first, begin, std::as_writable_bytes(std::span(a).first(size)));
      second_.read(tensor.second, begin, std::as_writable_bytes(std::span(b).first(size)));
      if (std::memcmp(a.data(), b.data(), size * sizeof(Element)) == 0) continue;
      for (size_t i = 0; i < size; ++i) {
        if (std::memcmp(&a[i], &b[i], sizeof(Element)) == 0) continue;
        const auto left = value_of(a[i]), right = value_of(b[i]);
        if (differing++ == 0) {
          first = fmt::format("first element {}: {} and {}", begin + static_cast<int64_t>(i), left,
                              right);
        }
        // A NaN is larger than all numbers.
        const auto distance = distance_of(left, right);
        if (largest == largest && !(distance <= largest)) largest = distance;
      }
    }
    if (differing == 0) return false;
    constexpr bool kIsNumber = !std::is_same_v<decltype(value_of(Element())), std::string>;
    const ManifestTensor& of = first_.manifest().tensors[static_cast<size_t>(tensor.first)];
    differ(fmt::format("tensor {}: {} of {} elements differ{}, {}", quoted_name(of.name), differing,
                       tensor.numel, kIsNumber ? fmt::format(" by at most {}", largest) : "",
                       first));
    return true;
  }

  CheckpointTensors first_, second_;
  const bool all_;
  const std::function<void(const std::string& line)>& say_;
  bool equal_ = true;
};

}  // namespace

bool compare_checkpoints(const std::filesystem::path& first, const std::filesystem::path& second,
                         bool all, const std::function<void(const std::string& line)>& say) {
  return Comparison(first, second, all, say).run();
}

}  // namespace fsdp
