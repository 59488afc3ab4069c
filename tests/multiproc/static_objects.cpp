// Trains a step with static objects and ends. Usage: torch_rank static WHERE UNITS ORDER. A
// destructor (WHERE is "static") or an exit handler (WHERE is "exit") destroys the objects in
// ORDER. It is registered before the first use of the library, so it runs after the destructors of
// the library's own static objects.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "torch_rank.h"

namespace {

class Objects {
 public:
  ~Objects() { end(); }
  template <class T>
  T& add(char letter, std::shared_ptr<T> object) {
    held_[letter] = object;
    return *object;
  }
  void end() {
    for (const char letter : order) held_.erase(letter);
  }
  std::string order;

 private:
  std::map<char, std::shared_ptr<void>> held_;
};

Objects& static_instance() {
  static Objects objects;
  return objects;
}
Objects* ended_at_exit = nullptr;

void train(Objects& objects, bool by_policy) {
  auto& mesh = objects.add('m', std::make_shared<fsdp::Mesh>(fsdp::Mesh::single()));
  std::shared_ptr<torch::nn::Module> model;
  if (by_policy) {
    model = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)).ptr();
  } else {
    model = fsdp::Unit<torch::nn::Linear>(4, 4).ptr();
  }
  objects.add('n', model);
  fsdp::Options options{.tuning = {.cpu_streams = fsdp::CpuStreamKind::kThreaded}};
  if (by_policy) options.units = fsdp::by_type<torch::nn::LinearImpl>();
  auto& engine = objects.add('e', std::make_shared<fsdp::Engine>(model, mesh, options));
  auto& optimizer =
      objects.add('o', std::make_shared<fsdp::AdamW>(engine, fsdp::AdamWOptions{.lr = 0.1}));
  objects.add('s', std::make_shared<fsdp::StepLR>(optimizer, fsdp::StepLROptions{.step_size = 1}));
  objects.add('l', std::make_shared<fsdp::LossScaler>(engine));
  auto& plain = objects.add('p', std::make_shared<torch::optim::SGD>(engine.parameters(), 0.1));
  at::Tensor loss;
  if (by_policy) {
    auto& layers = dynamic_cast<torch::nn::SequentialImpl&>(*model);
    loss = engine.forward([&] { return layers.forward(torch::ones({2, 4})).sum(); });
  } else {
    auto& layer = dynamic_cast<fsdp::UnitImpl<torch::nn::LinearImpl>&>(*model);
    loss = layer.call(torch::ones({2, 4})).sum();
  }
  loss.backward();
  objects.add('t', std::make_shared<std::vector<at::Tensor>>(engine.parameters()));
  optimizer.step();
  plain.step();
}

}  // namespace

int fsdp::testing::static_objects(int argc, char** argv) {
  if (argc != 4) return 64;
  if (std::string_view(argv[1]) == "exit") {
    ended_at_exit = new Objects;
    std::atexit([] { ended_at_exit->end(); });
  } else {
    static_instance();
  }
  Objects& objects = ended_at_exit != nullptr ? *ended_at_exit : static_instance();
  objects.order = argv[3];
  train(objects, std::string_view(argv[2]) == "policy");
  std::puts("done");
  return 0;
}
