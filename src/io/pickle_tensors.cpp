#include "io/pickle_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "fsdp/program_text.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Kind = PickleValue::Kind;

// The arguments of a function. Accessors check the position and the kind of an argument.
class Arguments {
 public:
  Arguments(const PickleValue& tuple, size_t least, size_t most) : tuple_(tuple) {
    if (tuple.kind != Kind::kSequence || tuple.items.size() < least || tuple.items.size() > most) {
      throw WrongArguments{fmt::format("has {} arguments, expected {}{}", tuple.items.size(), least,
                                       most == least ? "" : fmt::format(" to {}", most))};
    }
  }
  size_t size() const { return tuple_.items.size(); }
  const PickleValue& any(size_t index) const { return *tuple_.items[index]; }
  const PickleValue& at(size_t index, Kind kind) const {
    if (any(index).kind != kind) {
      throw WrongArguments{fmt::format("has an argument {} of the wrong type", index)};
    }
    return any(index);
  }
  int64_t integer(size_t index) const { return at(index, Kind::kInteger).integer; }
  std::vector<int64_t> integers(size_t index) const {
    const PickleValue& list = at(index, Kind::kSequence);
    // A list that is too long is refused before it is copied.
    if (std::ssize(list.items) > kMaxDimensions) {
      throw WrongArguments{fmt::format("has more than {} dimensions", kMaxDimensions)};
    }
    const Arguments each(list, 0, list.items.size());
    std::vector<int64_t> values;
    for (size_t i = 0; i < each.size(); ++i) values.push_back(each.integer(i));
    return values;
  }

 private:
  const PickleValue& tuple_;
};

RebuiltTensor unread(std::string why) { return {.unread = std::move(why)}; }

// Checks the autograd arguments. requires_grad changes no value. Hooks are refused: they run in
// backward, and torch.save writes none.
void check_autograd(const Arguments& arguments, size_t requires_grad) {
  arguments.integer(requires_grad);
  const PickleValue& hooks = arguments.any(requires_grad + 1);
  if (hooks.kind == Kind::kOther) return;
  if (hooks.kind != Kind::kDict || !hooks.items.empty()) {
    throw WrongArguments{"has backward hooks, which are not loaded", "save model.state_dict()"};
  }
}

// If the tensor's values differ from those of its storage ({'conj': True} or {'neg': True}),
// returns this as the reason why the tensor cannot be read. If they do not differ, returns an empty
// text.
std::string metadata_of(const PickleValue& metadata) {
  if (metadata.kind == Kind::kOther) return {};
  if (metadata.kind != Kind::kDict) throw WrongArguments{"has metadata that is not a dict"};
  for (size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
    const PickleValue& key = *metadata.items[i];
    const PickleValue& value = *metadata.items[i + 1];
    if (key.kind != Kind::kText || value.kind != Kind::kInteger) {
      throw WrongArguments{"has metadata of the wrong type"};
    }
    if (value.integer != 0) return fmt::format("has its {} bit set", quoted_name(key.text));
  }
  return {};
}

// Interprets _rebuild_tensor(storage, offset, size, stride). v2 has: …, requires_grad, hooks[,
// metadata]. v3 has: …, requires_grad, hooks, dtype[, metadata].
RebuiltTensor from_storage(PickleFunction function, const PickleValue& tuple) {
  const bool is_v2 = function == PickleFunction::kTensorV2;
  const bool is_v3 = function == PickleFunction::kTensorV3;
  const size_t least = is_v3 ? 7 : is_v2 ? 6 : 4;
  const Arguments arguments(tuple, least, least + (is_v2 || is_v3 ? 1 : 0));
  if (is_v2 || is_v3) check_autograd(arguments, 4);
  std::string metadata = arguments.size() > least ? metadata_of(arguments.any(least)) : "";
  // Arguments are checked first, so that a broken file is not reported as an unsupported tensor.
  if (arguments.any(0).kind == Kind::kUnreadTensor) return unread(arguments.any(0).text);
  // The storage supplies the type, the record and the size of the record.
  auto tensor = std::make_unique<PickledTensor>(*arguments.at(0, Kind::kStorage).tensor);
  tensor->offset = arguments.integer(1);
  tensor->shape = arguments.integers(2);
  tensor->strides = arguments.integers(3);
  // In v3 the storage holds bytes, and the type is an argument.
  if (is_v3) {
    const std::string& name = arguments.at(6, Kind::kGlobal).text;
    const auto dtype = dtype_of_name(name);
    if (!dtype) return unread(fmt::format("is of type {}", quoted_name(name)));
    tensor->dtype = *dtype;
  }
  if (!metadata.empty()) return unread(std::move(metadata));
  return {.tensor = std::move(tensor)};
}

// Interprets _rebuild_parameter(data, requires_grad, hooks) and _rebuild_parameter_with_state(…,
// state). The state holds Python attributes.
RebuiltTensor parameter(const PickleValue& tuple, size_t count) {
  const Arguments arguments(tuple, count, count);
  check_autograd(arguments, 1);
  const PickleValue& data = arguments.any(0);
  if (data.kind == Kind::kUnreadTensor) return unread(data.text);
  return {.tensor = std::make_unique<PickledTensor>(*arguments.at(0, Kind::kTensor).tensor)};
}

// Interprets _rebuild_from_type_v2(function, class, arguments, state), which makes a tensor with
// Python attributes.
RebuiltTensor from_type(const PickleValue& tuple) {
  const Arguments arguments(tuple, 4, 4);
  const std::string& made_by = arguments.at(0, Kind::kGlobal).text;
  const std::string& type = arguments.at(1, Kind::kGlobal).text;
  const auto function = pickle_function(made_by);
  if (!is_tensor_class(type)) return unread(fmt::format("is a {}", quoted_name(type)));
  // The inner function must not be _rebuild_from_type_v2 again, because a file could nest such
  // calls without a limit.
  if (!function || function == PickleFunction::kDict || function == PickleFunction::kFromType ||
      function == PickleFunction::kFirstArgument) {
    return unread(fmt::format("is made by {}", quoted_name(made_by)));
  }
  return rebuild_tensor(*function, arguments.at(2, Kind::kSequence));
}

}  // namespace

RebuiltTensor rebuild_tensor(PickleFunction function, const PickleValue& arguments) {
  switch (function) {
    case PickleFunction::kParameter:
      return parameter(arguments, 3);
    case PickleFunction::kParameterWithState:
      return parameter(arguments, 4);
    case PickleFunction::kFromType:
      return from_type(arguments);
    default:
      return from_storage(function, arguments);
  }
}

RebuiltTensor rebuild_storage(const PickleValue& id) {
  const Arguments arguments(id, 5, 5);
  if (const std::string& kind = arguments.at(0, Kind::kText).text; kind != "storage") {
    throw WrongArguments{fmt::format("has the unknown kind {}", quoted_name(kind))};
  }
  const std::string& type = arguments.at(1, Kind::kGlobal).text;
  const std::string& key = arguments.at(2, Kind::kText).text;
  // The size of the key is limited, because each tensor keeps a copy of its storage's key.
  constexpr size_t kMaxKeyBytes = 256;
  if (key.size() > kMaxKeyBytes) throw WrongArguments{"has too long a name"};
  const auto dtype = dtype_of_storage(type);
  if (!dtype) {
    if (!makes_tensor(type))
      throw WrongArguments{fmt::format("has the unknown type {}", quoted_name(type))};
    return unread(fmt::format("is of a {}", quoted_name(type)));
  }
  // In every storage type an element occupies whole bytes, so this division is exact.
  const auto bytes = checked_product(arguments.integer(4), bits_of(*dtype) / 8);
  if (!bytes || *bytes < 0) throw WrongArguments{"has no size"};
  PickledTensor storage{.dtype = *dtype, .record = key, .record_bytes = *bytes};
  return {.tensor = std::make_unique<PickledTensor>(std::move(storage))};
}

}  // namespace fsdp
