//! Reads Python's pickle format as far as `torch.save` files and data sets need it: plain data, containers, tensors and numpy arrays.
//!
//! A pickle is a program, and a stranger may have written it. Here nothing runs: of the objects that a pickle can name, the
//! few that rebuild tensors and containers are understood, and any other is refused by its name. Memory grows with the
//! length of the stream and not with what it says.

use super::numpy;
use super::opcode::*;
use super::value::Value;
use crate::error::{Error, Result};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use tch::{Kind, Tensor};

/// Containers within containers. Also what ends a container that contains itself.
const MAX_DEPTH: usize = 100;
/// How much larger than the stream its values may become: an object that is used again costs the stream two bytes.
const MAX_GROWTH: usize = 16;
/// The same for small streams.
const SMALL: usize = 1 << 20;

/// A tensor as the pickle describes it: where its elements lie. Nothing has been checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct View {
    /// Name of the storage: `data/KEY` in the archive.
    pub key: Rc<str>,
    /// Element type.
    pub kind: Kind,
    /// Elements of the storage.
    pub length: i64,
    /// Of the first element, in elements.
    pub offset: i64,
    /// Shape.
    pub size: Vec<i64>,
    /// In elements.
    pub stride: Vec<i64>,
}

/// Reads a pickle; `tensor` makes the tensors.
///
/// # Errors
/// What is no pickle, is cut off, names an object that is not understood (by its name), or contains itself; what `tensor`
/// reports. `path` names the file, and offsets count from the stream's beginning.
pub(super) fn unpickle(path: &Path, stream: &[u8], tensor: &mut dyn FnMut(&View) -> Result<Tensor>) -> Result<Value> {
    let mut machine = Machine {
        path,
        stream,
        at: 0,
        op: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        copies_left: Cell::new(MAX_GROWTH * stream.len() + SMALL),
    };
    let root = machine.run(tensor)?;
    let mut left = MAX_GROWTH * stream.len() + SMALL;
    machine.value(root, 0, &mut left)
}

/// Index of a node.
type Id = usize;

/// An object that the pickle has made. Containers are filled after they are known to others, so they hold indices.
enum Node {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<str>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    OrderedDict(Vec<(Id, Id)>),
    Tensor(Tensor),
    Global(Global),
    Storage {
        key: Rc<str>,
        kind: Kind,
        length: i128,
    },
    /// Bytes that stand in the stream: numpy's elements, or a text of Python 2.
    Bytes(Range<usize>),
    /// Bytes that the stream has as text, a character each.
    Encoded(Rc<[u8]>),
    /// A numpy array whose shape and elements follow.
    Array,
    /// A numpy element type.
    Element(Kind),
}

/// What a pickle may name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Global {
    OrderedDict,
    Counter,
    RebuildTensor,
    RebuildTensorV2,
    RebuildParameter,
    RebuildParameterWithState,
    Size,
    Device,
    Storage(Kind),
    /// An element type as a value, such as `float16`.
    Dtype(&'static str),
    NumpyReconstruct,
    NumpyFromBuffer,
    NumpyArray,
    NumpyDtype,
    Encode,
}

impl Global {
    fn named(module: &str, name: &str) -> Option<Global> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("collections", "Counter") => Some(Global::Counter),
            ("torch._utils", "_rebuild_tensor") => Some(Global::RebuildTensor),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Global::RebuildTensorV2),
            ("torch._utils", "_rebuild_parameter") => Some(Global::RebuildParameter),
            ("torch._utils", "_rebuild_parameter_with_state") => Some(Global::RebuildParameterWithState),
            ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Some(Global::NumpyReconstruct),
            ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Some(Global::NumpyFromBuffer),
            ("numpy", "ndarray") => Some(Global::NumpyArray),
            ("numpy", "dtype") => Some(Global::NumpyDtype),
            ("_codecs", "encode") => Some(Global::Encode),
            ("torch", "Size") => Some(Global::Size),
            ("torch", "device") => Some(Global::Device),
            ("torch", name) => {
                let storage = STORAGES.iter().find(|(_, class)| *class == name).map(|(kind, _)| Global::Storage(*kind));
                storage.or_else(|| DTYPES.iter().find(|dtype| **dtype == name).map(|dtype| Global::Dtype(dtype)))
            }
            _ => None,
        }
    }
}

const DTYPES: [&str; 10] =
    ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];

struct Machine<'a> {
    path: &'a Path,
    stream: &'a [u8],
    at: usize,
    /// Where the operation that is being read began.
    op: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Bytes of arrays that may still be made, as one stretch of the stream may be taken for many.
    copies_left: Cell<usize>,
}

impl Machine<'_> {
    fn wrong(&self, message: impl std::fmt::Display) -> Error {
        Error::data(self.path, None, format!("byte {} of its pickle: {message}", self.op))
    }

    fn take(&mut self, n: usize) -> Result<&[u8]> {
        match self.at.checked_add(n).and_then(|end| self.stream.get(self.at..end)) {
            Some(bytes) => {
                self.at += n;
                Ok(bytes)
            }
            None => Err(self.wrong(format_args!(
                "{n} bytes are expected after byte {}, and it ends at {}: the file is cut off or damaged",
                self.at,
                self.stream.len()
            ))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A length of 8 bytes.
    fn length_64(&mut self) -> Result<usize> {
        let n = u64::from_le_bytes(self.array()?);
        usize::try_from(n).map_err(|_| self.wrong(format_args!("a length of {n} bytes")))
    }

    fn line(&mut self) -> Result<&str> {
        let rest = &self.stream[self.at..];
        let Some(end) = rest.iter().position(|&b| b == b'\n') else {
            return Err(self.wrong("a line without end: the file is cut off or damaged"));
        };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| self.wrong("a line that is no UTF-8"))?;
        self.at += end + 1;
        Ok(line)
    }

    fn text(&mut self, n: usize) -> Result<Rc<str>> {
        let bytes = self.take(n)?;
        let text = std::str::from_utf8(bytes).map(Rc::from);
        text.map_err(|_| self.wrong("a text that is no UTF-8"))
    }

    /// Bytes stay where they are. A text of Python 2 is bytes too, and is taken for text where text is wanted.
    fn bytes(&mut self, n: usize) -> Result<()> {
        let begin = self.at;
        self.take(n)?;
        self.push(Node::Bytes(begin..begin + n));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.wrong("an operand is missing: the file is damaged"));
        }
        self.stack.pop().ok_or_else(|| self.wrong("an operand is missing: the file is damaged"))
    }

    fn top(&mut self) -> Result<Id> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(id)
    }

    fn pop_marked(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.wrong("a mark is missing: the file is damaged"))?;
        Ok(self.stack.split_off(mark))
    }

    fn run(&mut self, tensor: &mut dyn FnMut(&View) -> Result<Tensor>) -> Result<Id> {
        loop {
            self.op = self.at;
            let op = self.byte()?;
            match op {
                PROTO => {
                    let protocol = self.byte()?;
                    if protocol > 5 {
                        return Err(self.wrong(format_args!("protocol {protocol}; known are those up to 5")));
                    }
                }
                // A frame's length says nothing that the operations in it do not.
                FRAME => {
                    self.length_64()?;
                }
                STOP => return self.pop(),
                MARK => self.marks.push(self.stack.len()),
                POP => {
                    self.pop()?;
                }
                POP_MARK => {
                    self.pop_marked()?;
                }
                DUP => {
                    let id = self.top()?;
                    self.stack.push(id);
                }
                NONE => self.push(Node::None),
                NEWTRUE => self.push(Node::Bool(true)),
                NEWFALSE => self.push(Node::Bool(false)),
                BININT => {
                    let n = i32::from_le_bytes(self.array()?);
                    self.push(Node::Int(n.into()));
                }
                BININT1 => {
                    let n = self.byte()?;
                    self.push(Node::Int(n.into()));
                }
                BININT2 => {
                    let n = u16::from_le_bytes(self.array()?);
                    self.push(Node::Int(n.into()));
                }
                LONG1 => {
                    let n = self.byte()?.into();
                    self.long(n)?;
                }
                BINFLOAT => {
                    let x = f64::from_be_bytes(self.array()?);
                    self.push(Node::Float(x));
                }
                BINUNICODE => {
                    let n = self.u32()? as usize;
                    let text = self.text(n)?;
                    self.push(Node::Str(text));
                }
                SHORT_BINUNICODE => {
                    let n = self.byte()?.into();
                    let text = self.text(n)?;
                    self.push(Node::Str(text));
                }
                SHORT_BINSTRING | SHORT_BINBYTES => {
                    let n = self.byte()?.into();
                    self.bytes(n)?;
                }
                BINSTRING | BINBYTES => {
                    let n = self.u32()? as usize;
                    self.bytes(n)?;
                }
                BINBYTES8 | BYTEARRAY8 => {
                    let n = self.length_64()?;
                    self.bytes(n)?;
                }
                BINUNICODE8 => {
                    let n = self.length_64()?;
                    let text = self.text(n)?;
                    self.push(Node::Str(text));
                }
                EMPTY_LIST => self.push(Node::List(Vec::new())),
                EMPTY_TUPLE => self.push(Node::Tuple(Vec::new())),
                EMPTY_DICT => self.push(Node::Dict(Vec::new())),
                TUPLE => {
                    let items = self.pop_marked()?;
                    self.push(Node::Tuple(items));
                }
                LIST => {
                    let items = self.pop_marked()?;
                    self.push(Node::List(items));
                }
                DICT => {
                    let items = self.pop_marked()?;
                    let pairs = self.pairs(&items)?;
                    self.push(Node::Dict(pairs));
                }
                TUPLE1..=TUPLE3 => {
                    let mut items = Vec::new();
                    for _ in TUPLE1..=op {
                        items.insert(0, self.pop()?);
                    }
                    self.push(Node::Tuple(items));
                }
                APPEND => {
                    let item = self.pop()?;
                    self.append(&[item])?;
                }
                APPENDS => {
                    let items = self.pop_marked()?;
                    self.append(&items)?;
                }
                SETITEM => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set_items(&[key, value])?;
                }
                SETITEMS => {
                    let items = self.pop_marked()?;
                    self.set_items(&items)?;
                }
                GLOBAL => {
                    let module = self.line()?.to_string();
                    let name = self.line()?.to_string();
                    self.global(&module, &name)?;
                }
                STACK_GLOBAL => {
                    let name = self.pop()?;
                    let module = self.pop()?;
                    let (Node::Str(module), Node::Str(name)) = (&self.nodes[module], &self.nodes[name]) else {
                        return Err(self.wrong("a global whose name is no text"));
                    };
                    let (module, name) = (module.clone(), name.clone());
                    self.global(&module, &name)?;
                }
                REDUCE => {
                    let arguments = self.pop()?;
                    let function = self.pop()?;
                    let node = self.call(function, arguments, tensor)?;
                    self.push(node);
                }
                BUILD => {
                    let state = self.pop()?;
                    let object = self.top()?;
                    self.build(object, state)?;
                }
                BINPERSID => {
                    let id = self.pop()?;
                    let storage = self.storage(id)?;
                    self.push(storage);
                }
                BINPUT => {
                    let key = self.byte()?.into();
                    self.remember(key)?;
                }
                LONG_BINPUT => {
                    let key = self.u32()?;
                    self.remember(key)?;
                }
                MEMOIZE => {
                    let key = self.memo.len() as u32;
                    self.remember(key)?;
                }
                BINGET => {
                    let key = self.byte()?.into();
                    self.recall(key)?;
                }
                LONG_BINGET => {
                    let key = self.u32()?;
                    self.recall(key)?;
                }
                _ => {
                    let shown = if op.is_ascii_graphic() { format!(" ('{}')", char::from(op)) } else { String::new() };
                    return Err(self.wrong(format_args!(
                        "operation {op:#04x}{shown}, which torch.save does not use for tensors and plain data"
                    )));
                }
            }
        }
    }

    fn remember(&mut self, key: u32) -> Result<()> {
        let id = self.top()?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<()> {
        let Some(&id) = self.memo.get(&key) else {
            return Err(self.wrong(format_args!("object {key} is used before it is made: the file is damaged")));
        };
        self.stack.push(id);
        Ok(())
    }

    /// A little-endian integer of `n` bytes.
    fn long(&mut self, n: usize) -> Result<()> {
        let bytes = self.take(n)?;
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = if negative { [0xff; 16] } else { [0; 16] };
        let value = (n <= wide.len()).then(|| {
            wide[..n].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        });
        let Some(value) = value else {
            return Err(self.wrong(format_args!("an integer of {n} bytes; those of up to 16 are understood")));
        };
        self.push(Node::Int(value));
        Ok(())
    }

    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>> {
        if items.len() % 2 == 1 {
            return Err(self.wrong("a key without value: the file is damaged"));
        }
        Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    fn append(&mut self, items: &[Id]) -> Result<()> {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(to) => {
                to.extend(items);
                Ok(())
            }
            _ => Err(self.wrong("an element is added to what is no list")),
        }
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let pairs = self.pairs(items)?;
        let dict = self.top()?;
        match &mut self.nodes[dict] {
            Node::Dict(to) | Node::OrderedDict(to) => {
                to.extend(pairs);
                Ok(())
            }
            _ => Err(self.wrong("an item is set in what is no dict")),
        }
    }

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let Some(global) = Global::named(module, name) else {
            return Err(self.wrong(format_args!(
                "it names {module}.{name}, and only what rebuilds tensors and containers is understood (nothing is ever \
                 run); if you trust the file, save its tensors alone in Python, such as: torch.save(torch.load(FILE, \
                 weights_only=False)[\"state_dict\"], NEW)"
            )));
        };
        self.push(match global {
            Global::Dtype(name) => Node::Str(format!("torch.{name}").into()),
            other => Node::Global(other),
        });
        Ok(())
    }
}

impl Machine<'_> {
    /// What a function gives for its arguments.
    fn call(&self, function: Id, arguments: Id, tensor: &mut dyn FnMut(&View) -> Result<Tensor>) -> Result<Node> {
        let Node::Global(global) = self.nodes[function] else {
            return Err(self.wrong("a call of what is no function: the file is damaged"));
        };
        let Node::Tuple(arguments) = &self.nodes[arguments] else {
            return Err(self.wrong("a call without arguments: the file is damaged"));
        };
        let misfit = || self.wrong(format_args!("{global:?} with arguments that are not its own: the file is damaged"));
        match (global, arguments.as_slice()) {
            (Global::OrderedDict, []) => Ok(Node::OrderedDict(Vec::new())),
            (Global::OrderedDict, [items]) => {
                // Python 2 gave the items as a list of lists.
                let Node::List(items) = &self.nodes[*items] else { return Err(misfit()) };
                let pair = |&item: &Id| match &self.nodes[item] {
                    Node::List(pair) | Node::Tuple(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
                    _ => Err(misfit()),
                };
                Ok(Node::OrderedDict(items.iter().map(pair).collect::<Result<_>>()?))
            }
            (Global::NumpyReconstruct, [class, ..]) => match self.nodes[*class] {
                Node::Global(Global::NumpyArray) => Ok(Node::Array),
                _ => Err(misfit()),
            },
            (Global::NumpyFromBuffer, [elements, element, shape, order]) => {
                let fortran = self.bytes_of(*order).is_some_and(|order| order == b"F");
                Ok(Node::Tensor(self.array_of(*element, *shape, fortran, *elements)?))
            }
            (Global::NumpyDtype, [code, ..]) => {
                let code = self.bytes_of(*code).and_then(|code| std::str::from_utf8(code).ok()).ok_or_else(misfit)?;
                let element = numpy::kind(code).map(Node::Element);
                element.ok_or_else(|| {
                    self.wrong(format_args!("a numpy array of elements {code:?}, which are not understood"))
                })
            }
            (Global::Encode, [text, encoding]) => match (&self.nodes[*text], self.bytes_of(*encoding)) {
                (Node::Str(text), Some(b"latin1" | b"latin-1")) => {
                    self.spend(text.len())?;
                    let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
                    Ok(Node::Encoded(bytes.collect::<std::result::Result<_, _>>().map_err(|_| misfit())?))
                }
                _ => Err(misfit()),
            },
            (Global::Counter, [counts]) => match &self.nodes[*counts] {
                Node::Dict(counts) => Ok(Node::Dict(counts.clone())),
                _ => Err(misfit()),
            },
            (Global::Size, [sizes]) => match &self.nodes[*sizes] {
                Node::List(sizes) | Node::Tuple(sizes) => Ok(Node::Tuple(sizes.clone())),
                _ => Err(misfit()),
            },
            (Global::Device, [kind, index @ ..]) => match (&self.nodes[*kind], index) {
                (Node::Str(kind), []) => Ok(Node::Str(kind.clone())),
                (Node::Str(kind), [index]) => match self.nodes[*index] {
                    Node::Int(index) => Ok(Node::Str(format!("{kind}:{index}").into())),
                    _ => Err(misfit()),
                },
                _ => Err(misfit()),
            },
            (Global::RebuildParameter | Global::RebuildParameterWithState, [data, ..]) => match &self.nodes[*data] {
                Node::Tensor(t) => Ok(Node::Tensor(t.shallow_clone())),
                _ => Err(misfit()),
            },
            (Global::RebuildTensor | Global::RebuildTensorV2, [storage, offset, size, stride, ..]) => {
                let Node::Storage { key, kind, length } = &self.nodes[*storage] else { return Err(misfit()) };
                let (Some(offset), Some(length)) = (self.small_int(*offset), i64::try_from(*length).ok()) else {
                    return Err(misfit());
                };
                let (Some(size), Some(stride)) = (self.ints(*size), self.ints(*stride)) else { return Err(misfit()) };
                let view = View { key: key.clone(), kind: *kind, length, offset, size, stride };
                Ok(Node::Tensor(tensor(&view)?))
            }
            _ => Err(misfit()),
        }
    }

    fn small_int(&self, id: Id) -> Option<i64> {
        if let Node::Int(n) = self.nodes[id] { i64::try_from(n).ok() } else { None }
    }

    fn ints(&self, tuple: Id) -> Option<Vec<i64>> {
        let Node::Tuple(items) = &self.nodes[tuple] else { return None };
        items.iter().map(|&id| self.small_int(id)).collect()
    }

    /// The bytes of a text or of bytes.
    fn bytes_of(&self, id: Id) -> Option<&[u8]> {
        match &self.nodes[id] {
            Node::Str(text) => Some(text.as_bytes()),
            Node::Bytes(range) => self.stream.get(range.clone()),
            Node::Encoded(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A numpy array from its parts.
    fn array_of(&self, element: Id, shape: Id, fortran: bool, elements: Id) -> Result<Tensor> {
        let (Node::Element(kind), Some(shape), Some(bytes)) =
            (&self.nodes[element], self.ints(shape), self.bytes_of(elements))
        else {
            return Err(
                self.wrong("a numpy array without shape, type or elements: it has objects, or the file is damaged")
            );
        };
        self.spend(bytes.len())?;
        numpy::array(*kind, &shape, fortran, bytes).map_err(|reason| self.wrong(reason))
    }

    fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.copies_left.get().checked_sub(bytes);
        self.copies_left.set(left.ok_or_else(|| self.wrong("the same bytes are used for arrays again and again"))?);
        Ok(())
    }

    /// The state that Python adds to an object. A state_dict's (the versions of its modules) is not needed.
    fn build(&mut self, object: Id, state: Id) -> Result<()> {
        match (&self.nodes[object], &self.nodes[state]) {
            (Node::OrderedDict(_), Node::Dict(_)) => Ok(()),
            (Node::Element(_), Node::Tuple(state)) => match state.get(1).and_then(|&order| self.bytes_of(order)) {
                Some(b"<" | b"|" | b"=") => Ok(()),
                _ => Err(self.wrong("a numpy array whose numbers are not little-endian")),
            },
            (Node::Array, Node::Tuple(state)) => {
                let [_, shape, element, fortran, elements] = state[..] else {
                    return Err(self.wrong("a numpy array with parts that are not its own: the file is damaged"));
                };
                let fortran = matches!(self.nodes[fortran], Node::Bool(true) | Node::Int(1));
                self.nodes[object] = Node::Tensor(self.array_of(element, shape, fortran, elements)?);
                Ok(())
            }
            _ => Err(self.wrong("a state for what has none: tensors and containers have none that is understood")),
        }
    }

    /// `("storage", class, key, location, length)`
    fn storage(&self, id: Id) -> Result<Node> {
        let Node::Tuple(parts) = &self.nodes[id] else {
            return Err(self.wrong("a reference to what is no storage"));
        };
        let parts: Vec<&Node> = parts.iter().map(|&id| &self.nodes[id]).collect();
        match parts.as_slice() {
            [
                Node::Str(what),
                Node::Global(Global::Storage(kind)),
                Node::Str(key),
                Node::Str(_),
                Node::Int(length),
                ..,
            ] if &**what == "storage" => Ok(Node::Storage { key: key.clone(), kind: *kind, length: *length }),
            _ => Err(self.wrong("a reference to what is no storage")),
        }
    }

    /// The node and everything in it, as values. `left` is how much may still be made.
    fn value(&self, id: Id, depth: usize, left: &mut usize) -> Result<Value> {
        let whole = |message: String| Error::data(self.path, None, message);
        if depth > MAX_DEPTH {
            return Err(whole(format!(
                "its pickle has containers in containers more than {MAX_DEPTH} deep, or one that contains itself"
            )));
        }
        let node = &self.nodes[id];
        let cost = match node {
            Node::Str(text) => 1 + text.len(),
            Node::Bytes(range) => 1 + range.len(),
            Node::Encoded(bytes) => 1 + bytes.len(),
            _ => 1,
        };
        *left = left.checked_sub(cost).ok_or_else(|| {
            whole("its pickle uses the same objects again and again, to far more than its own length".into())
        })?;
        let values = |ids: &[Id], left: &mut usize| -> Result<Vec<Value>> {
            ids.iter().map(|&id| self.value(id, depth + 1, left)).collect()
        };
        Ok(match node {
            Node::None => Value::None,
            Node::Bool(x) => Value::Bool(*x),
            Node::Int(x) => Value::Int(*x),
            Node::Float(x) => Value::Float(*x),
            Node::Str(x) => Value::Str(x.to_string()),
            Node::List(items) => Value::List(values(items, left)?),
            Node::Tuple(items) => Value::Tuple(values(items, left)?),
            Node::Dict(items) => Value::Dict(self.items(items, depth, left)?),
            Node::OrderedDict(items) => Value::OrderedDict(self.items(items, depth, left)?),
            Node::Tensor(t) => Value::Tensor(t.shallow_clone()),
            Node::Bytes(_) | Node::Encoded(_) => match self.bytes_of(id).map(std::str::from_utf8) {
                Some(Ok(text)) => Value::Str(text.to_string()),
                _ => return Err(whole("its pickle has bytes as a value that are no text; expected plain data".into())),
            },
            Node::Array | Node::Element(_) => {
                return Err(whole("its pickle has a numpy array without elements; expected plain data".into()));
            }
            Node::Global(global) => {
                return Err(whole(format!("its pickle has {global:?} as a value; expected plain data")));
            }
            Node::Storage { key, .. } => {
                return Err(whole(format!("its pickle has the storage `{key}` as a value; expected tensors")));
            }
        })
    }

    fn items(&self, items: &[(Id, Id)], depth: usize, left: &mut usize) -> Result<Vec<(Value, Value)>> {
        let mut out: Vec<(Value, Value)> = Vec::with_capacity(items.len());
        // A key that is set again keeps its place and gets the new value.
        let mut places: HashMap<String, usize> = HashMap::new();
        for &(key, value) in items {
            let (key, value) = (self.value(key, depth + 1, left)?, self.value(value, depth + 1, left)?);
            let name = match &key {
                Value::Str(name) => format!("s{name}"),
                Value::Int(n) => format!("i{n}"),
                other => format!("{other:?}"),
            };
            let place = *places.entry(name).or_insert(out.len());
            match out.get_mut(place) {
                None => out.push((key, value)),
                Some(known) => known.1 = value,
            }
        }
        Ok(out)
    }
}
