// TorchScript modules, with every parameter and buffer under its exact name.
//
// Conventions as in bridge.cpp. A module is owned by who loaded it, until weince_script_free.

#include <torch/csrc/jit/passes/inliner.h>
#include <torch/script.h>

#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "guarded.h"

using at::Tensor;
using torch::jit::Module;

namespace {

using Visit = void (*)(void* context, const char* name, Tensor* tensor, int is_parameter);

// In the order of Python's state_dict: a module's parameters, its buffers, then its children.
void walk(const Module& module, const std::string& prefix, void* context, Visit visit) {
  for (const auto& p : module.named_parameters(false))
    visit(context, (prefix + p.name).c_str(), new Tensor(p.value), 1);
  for (const auto& b : module.named_buffers(false))
    visit(context, (prefix + b.name).c_str(), new Tensor(b.value), 0);
  for (const auto& child : module.named_children()) walk(child.value, prefix + child.name + ".", context, visit);
}

// The input of a node by its name in the operation's schema, if it has one.
const torch::jit::Value* input_named(const torch::jit::Node* node, const char* name) {
  const auto* schema = node->maybeSchema();
  if (!schema) return nullptr;
  auto index = schema->argumentIndexWithName(name);
  return index && static_cast<size_t>(*index) < node->inputs().size() ? node->input(*index) : nullptr;
}

std::optional<double> constant_number(const torch::jit::Value* value) {
  auto constant = value ? torch::jit::toIValue(value) : std::nullopt;
  return constant && constant->isDouble() ? std::optional<double>(constant->toDouble()) : std::nullopt;
}

bool is_none(const torch::jit::Value* value) {
  if (value->type()->kind() == c10::TypeKind::NoneType) return true;
  auto constant = torch::jit::toIValue(value);
  return constant && constant->isNone();
}

std::string place(const torch::jit::Node* node) {
  std::ostringstream out;
  out << node->kind().toQualString();
  auto scope = node->scopeName();
  if (!scope.empty()) out << " in " << scope;
  return out.str();
}

// Mode and device that a graph carries as constants.
void inspect(torch::jit::Block* block, std::set<std::string>& modes, std::set<std::string>& devices) {
  for (auto* node : block->nodes()) {
    const auto* mode = input_named(node, "training");
    if (!mode) mode = input_named(node, "train");
    if (!mode) mode = input_named(node, "use_input_stats");
    auto flag = mode ? torch::jit::toIValue(mode) : std::nullopt;
    if (flag && flag->isBool()) {
      // Dropout of nothing, and batch statistics where there are no running ones, are the same in both modes.
      const auto* p = input_named(node, "p");
      auto dropout = constant_number(p ? p : input_named(node, "dropout"));
      const auto* mean = input_named(node, "running_mean");
      if (!(dropout && *dropout == 0.0) && !(mean && is_none(mean)))
        modes.insert(place(node) + (flag->toBool() ? " (always as in training)" : " (always as in evaluation)"));
    }
    auto attention_dropout = constant_number(input_named(node, "dropout_p"));
    if (attention_dropout && *attention_dropout > 0.0)
      modes.insert(place(node) + " (its dropout always as in training)");
    for (auto* output : node->outputs()) {
      if (node->kind() != torch::jit::prim::Constant) break;
      auto constant = torch::jit::toIValue(output);
      if (constant && constant->isDevice()) devices.insert(constant->toDevice().str());
    }
    for (auto* inner : node->blocks()) inspect(inner, modes, devices);
    // What torch.jit.fork runs.
    if (node->hasAttribute(torch::jit::attr::Subgraph)) {
      auto graph = node->g(torch::jit::attr::Subgraph)->copy();
      torch::jit::Inline(*graph);
      inspect(graph->block(), modes, devices);
    }
  }
}

std::string lines(const std::set<std::string>& set) {
  std::string out;
  for (const auto& item : set) out += (out.empty() ? "" : "\n") + item;
  return out;
}

}  // namespace

extern "C" {

char* weince_script_load(const char* path, Module** out) {
  return guarded([&] { *out = new Module(torch::jit::load(path, at::Device(at::kCPU))); });
}

void weince_script_free(Module* module) { delete module; }

char* weince_script_train(Module* module, int on) {
  return guarded([&] { module->train(on != 0); });
}

// `visit` gets each parameter and buffer once a name, and owns the tensor.
char* weince_script_named(Module* module, void* context, Visit visit) {
  return guarded([&] { walk(*module, "", context, visit); });
}

// The one tensor that forward(inputs...) gives.
char* weince_script_forward(Module* module, Tensor* const* inputs, size_t n, Tensor** out) {
  return guarded([&] {
    std::vector<c10::IValue> values;
    for (size_t i = 0; i < n; i++) values.emplace_back(*inputs[i]);
    auto result = module->forward(std::move(values));
    if (!result.isTensor())
      throw std::runtime_error("forward gives " + result.tagKind() + ", expected one Tensor");
    *out = new Tensor(result.toTensor());
  });
}

// Lines that name what does not follow train() and eval(), and the devices that the code names.
char* weince_script_baked(Module* module, char** modes, char** devices) {
  return guarded([&] {
    std::set<std::string> found_modes, found_devices;
    auto graph = module->get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    inspect(graph->block(), found_modes, found_devices);
    *modes = strdup(lines(found_modes).c_str());
    *devices = strdup(lines(found_devices).c_str());
  });
}

char* weince_script_save(Module* module, const char* path) {
  return guarded([&] { module->save(path); });
}

}  // extern "C"
