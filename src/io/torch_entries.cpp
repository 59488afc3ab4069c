#include "io/torch_entries.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;

constexpr std::array<std::string_view, 3> kNested{"state_dict", "model_state_dict", "model"};
constexpr const char* kSaveStateDict = "save model.state_dict() with torch.save";

std::string described(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kUnread:
    case Kind::kGlobal:
    case Kind::kObject:
      return printable(value.text);
    case Kind::kText:
      return "a string";
    case Kind::kDict:
      return "a dict";
    case Kind::kSequence:
      return "a list";
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
    case Kind::kUnreadTensor:
      return "a tensor";
    default:
      return "a number or None";
  }
}

// A list of names for notes: "'epoch' (a number or None), 'args' (argparse.Namespace) and 3 more".
class NamedValues {
 public:
  void add(const std::string& name, const PickleValue& value) {
    constexpr size_t kMaxNamed = 8;
    if (++count_ <= kMaxNamed) {
      named_.push_back(fmt::format("{} ({})", quoted_name(name), described(value)));
    }
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    std::string text = fmt::format("{}", fmt::join(named_, ", "));
    if (count_ > named_.size()) text += fmt::format(" and {} more", count_ - named_.size());
    return text;
  }

 private:
  size_t count_ = 0;
  std::vector<std::string> named_;
};

bool is_tensor(const PickleValue& value) {
  return value.kind == Kind::kTensor || value.kind == Kind::kUnreadTensor;
}

bool holds_tensors(const PickleValue& dict) {
  for (size_t i = 1; i < dict.items.size(); i += 2) {
    if (is_tensor(*dict.items[i])) return true;
  }
  return false;
}

// Returns the last value of this name, because Python also keeps the last one. Returns null if
// there is none.
const PickleValue* find(const PickleValue& dict, std::string_view name) {
  for (size_t i = dict.items.size() / 2; i-- > 0;) {
    const PickleValue& key = *dict.items[2 * i];
    if (key.kind == Kind::kText && key.text == name) return dict.items[2 * i + 1];
  }
  return nullptr;
}

// Collects the weights of a pickle by their names.
class Walk {
 public:
  explicit Walk(const std::string& file) : file_(file) {}

  TorchEntries run(const PickleValue& root) {
    // A TorchScript module is an object with a dict of attributes. A state_dict is itself a dict.
    const bool is_module = root.kind == Kind::kObject && !root.items.empty();
    const PickleValue* dict = is_module ? root.items[0] : &root;
    if (dict->kind != Kind::kDict) refuse_root(*dict);
    if (!is_module) dict = &weights_of(*dict);
    walk(*dict, "", is_module, 0);
    if (!left_out_.empty()) {
      entries_.notes.push_back(fmt::format("{}: entries that are not tensors are left out: {}",
                                           file_, left_out_.text()));
    }
    return std::move(entries_);
  }

 private:
  static constexpr int kMaxDepth = 64;
  static constexpr int64_t kMaxVisits = 1 << 20;  // a file may refer to a module many times

  [[noreturn]] void refuse(std::string what, std::string hint = kSaveStateDict) const {
    throw IoError(ExitCode::kCorruptData,
                  {.what = std::move(what), .where = file_, .hint = std::move(hint)});
  }
  [[noreturn]] void refuse_root(const PickleValue& root) const {
    if (root.kind == Kind::kUnread) {
      refuse(fmt::format("the file holds a {}, not a state_dict", quoted_name(root.text)),
             "save model.state_dict() with torch.save: loading this object would run code");
    }
    refuse("the file holds neither a state_dict nor a module");
  }

  // Returns the dict of the weights. It is an entry of `dict` if a training script stored the
  // weights as one entry among others. Otherwise it is `dict` itself.
  const PickleValue& weights_of(const PickleValue& dict) {
    for (const std::string_view key : kNested) {
      const PickleValue* value = find(dict, key);
      if (value == nullptr || value->kind != Kind::kDict || !holds_tensors(*value)) continue;
      NamedValues beside;
      for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
        const PickleValue& other = *dict.items[i + 1];
        // Most training scripts store numbers and dicts beside the weights, so the note does not
        // name them. It names tensors and objects, because the user may have expected to load them.
        const bool is_said = is_tensor(other) || other.kind == Kind::kUnread;
        if (is_said) beside.add(dict.items[i]->text, other);
      }
      entries_.notes.push_back(
          fmt::format("{}: the weights are in its entry '{}'{}{}", file_, key,
                      beside.empty() ? "" : "; its other entries are left out: ", beside.text()));
      return *value;
    }
    if (!holds_tensors(dict)) refuse_without_tensors(dict);
    return dict;
  }
  [[noreturn]] void refuse_without_tensors(const PickleValue& dict) const {
    NamedValues dicts;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& value = *dict.items[i + 1];
      const bool may_hold =
          (value.kind == Kind::kDict && holds_tensors(value)) || value.kind == Kind::kUnread;
      if (may_hold) dicts.add(dict.items[i]->text, value);
    }
    refuse(
        fmt::format("the file's dict holds no tensors, nor does its entry 'state_dict', "
                    "'model_state_dict' or 'model'{}{}",
                    dicts.empty() ? "" : "; it has ", dicts.text()));
  }

  // Visits the entries of a dict. If `nested` is true, also visits the entries of the modules that
  // the dict contains.
  void walk(const PickleValue& dict, const std::string& prefix, bool nested, int depth) {
    if (depth > kMaxDepth) refuse("modules are nested too deeply");
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& key = *dict.items[i];
      const PickleValue& value = *dict.items[i + 1];
      // Modules may refer to each other, and a file may contain a cycle, so the depth and the
      // number of visits are limited.
      if (++visits_ > kMaxVisits) refuse("modules are nested too deeply");
      if (key.kind != Kind::kText) refuse("a key of the state_dict is not a string");
      const std::string name = prefix + key.text;
      if (is_tensor(value)) {
        add(name, value);
      } else if (!nested) {
        left_out_.add(name, value);
      } else if (value.kind == Kind::kObject && !value.items.empty()) {
        walk(*value.items[0], name + ".", true, depth + 1);
      }
    }
  }
  void add(const std::string& name, const PickleValue& value) {
    if (value.kind == Kind::kUnreadTensor) {
      refuse(fmt::format("tensor {} {}, which is not supported", quoted_name(name), value.text),
             "save it as a dense tensor of a floating type: dequantise it, call resolve_neg() and "
             "resolve_conj()");
    }
    if (std::ssize(entries_.tensors) == kMaxEntries) {
      refuse(fmt::format("the file has more than {} tensors", kMaxEntries),
             "save it in several files");
    }
    entries_.tensors.push_back({name, value.tensor.get()});
  }

  const std::string& file_;
  int64_t visits_ = 0;
  NamedValues left_out_;
  TorchEntries entries_;
};

}  // namespace

TorchEntries find_entries(const PickleValue& root, const std::string& file) {
  return Walk(file).run(root);
}

}  // namespace fsdp
